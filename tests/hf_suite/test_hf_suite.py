"""transformers' own common tests pass on the models of all modes; `suite.py` says which."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import transformers

from tests.commands import ROOT

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


@pytest.mark.slow
def test_the_common_tests_of_transformers_pass(tmp_path):
    pytest.importorskip("parameterized", reason="pip install -r requirements-dev.txt")
    suite = tmp_path / "hf_tests"
    shutil.copytree(source_distribution(tmp_path) / "tests", suite)
    for name, content in STUBS.items():
        (suite / name).parent.mkdir(exist_ok=True)
        (suite / name).write_text(content)
        (suite / name).with_name("__init__.py").touch()
    (suite / "__init__.py").touch()
    shutil.copy(Path(__file__).with_name("suite.py"), suite / "suite.py")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", tmp_path, "-q"]
    command += ["-W", "ignore", "-p", "no:cacheprovider", "--tb=short", suite / "suite.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout.splitlines()[-1]
