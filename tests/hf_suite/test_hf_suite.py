"""transformers' own common tests pass on the models of all modes; `suite.py` says which."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
import transformers

import elbert
from tests.commands import ROOT
from tests.conftest import TINY

STUBS = {  # of the modules that the source distribution leaves out
    "exporters/test_export.py": "class ExportTesterMixin: pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin: pass\n",
}


def source_distribution(folder: Path) -> Path:
    """Fetch the source of the installed transformers; skip the test where there is no network."""
    release = f"transformers-{transformers.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    command += ["--quiet", "--dest", folder, release.replace("-", "==")]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"the source of {release} cannot be fetched: {fetched.stderr.strip()[-200:]}")
    with tarfile.open(folder / f"{release}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / release


def write_tiny_models(folder: Path, spiece: Path) -> None:
    """Save the models of the pipelines as `PipelineTesterMixin` reads them, in place of the hub."""
    about = {}
    for model_class in (
        elbert.ElbertForSequenceClassification,
        elbert.PonderAlbertForSequenceClassification,
        elbert.AlbertActModel,
        elbert.AlbertActForSequenceClassification,
        elbert.AlbertActForTokenClassification,
        elbert.AlbertActForMaskedLM,
    ):
        torch.manual_seed(0)
        config = model_class.config_class(**TINY, num_labels=3)
        if isinstance(config, elbert.PonderAlbertConfig):
            config.exit_criteria = "threshold"  # not by chance
        name = model_class.__name__
        model_class(config).save_pretrained(folder / config.model_type / name)
        shutil.copy(spiece, folder / config.model_type / name / "spiece.model")
        about[name] = {"tokenizer_classes": ["AlbertTokenizer"], "processor_classes": []}
    (folder / "reports").mkdir()
    (folder / "reports/tiny_model_summary.json").write_text(json.dumps(about))


@pytest.mark.slow
def test_the_common_tests_of_transformers_pass(tmp_path, spiece):
    pytest.importorskip("parameterized", reason="pip install -r requirements/dev.txt")
    suite = tmp_path / "hf_tests"
    models = tmp_path / "models"
    write_tiny_models(models, spiece)
    (tmp_path / "src").mkdir()  # where the mixin looks for the package
    (tmp_path / "src/transformers").symlink_to(Path(transformers.__file__).parent)
    shutil.copytree(source_distribution(tmp_path) / "tests", suite)
    for name, content in STUBS.items():
        (suite / name).parent.mkdir(exist_ok=True)
        (suite / name).write_text(content)
        (suite / name).with_name("__init__.py").touch()
    (suite / "__init__.py").touch()
    shutil.copy(Path(__file__).with_name("suite.py"), suite / "suite.py")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", tmp_path, "-q", "-rs"]
    command += ["-W", "ignore", "-p", "no:cacheprovider", "--tb=short", suite / "suite.py"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TRANSFORMERS_TINY_MODEL_PATH": str(models),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout.splitlines()[-1]
    assert "Could not find or load" not in done.stdout  # why a pipeline's test skips itself
