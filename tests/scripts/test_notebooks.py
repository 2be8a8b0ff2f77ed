"""The notebooks: what is kept in them, and that they run from top to bottom."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.berts import save, tiny_encoder
from tests.conftest import write_sst2

ROOT = Path(__file__).parents[2]
A_MACHINES_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|usr|opt|work|var|Users)/")


@pytest.fixture(params=sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def notebook(request) -> Path:
    return request.param


def test_kept_outputs_have_no_errors_warnings_or_paths(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert all(output["output_type"] != "error" for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    printed = [output["text"] for output in outputs if output["output_type"] == "stream"]
    assert not A_MACHINES_PATH.search(json.dumps(printed))


def test_code_that_is_shown_is_the_code_of_today(notebook):
    code = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("modeling/**/*.py"))
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if "inspect.getsource" in "".join(cell["source"]) and cell["outputs"]:
            assert "".join(cell["outputs"][0]["text"]).strip() in code


def write_film_reviews(project: Path) -> None:
    """Stand-ins for what film_reviews.ipynb fetches: the files of SST-2, and MiniLM."""
    write_sst2(project / "glue_data/SST-2")
    encoder = tiny_encoder("bert", max_position_embeddings=512)
    save(encoder, project / "sentence-transformers/all-MiniLM-L6-v2")


# What the kept outputs were trained with, and what is enough to see that every cell runs.
SHORTER = {
    "adaptive_depth": {"--num_train_epochs 10": "--num_train_epochs 1"},
    "ponder": {"epochs=20, n_batches=200": "epochs=2, n_batches=20"},
    "pretraining": {"--max_steps 500": "--max_steps 50"},
    "search": {"--hp_epochs 4 8": "--hp_epochs 1 2", "--hp_trials 5": "--hp_trials 2"},
}


@pytest.mark.slow
def test_a_notebook_runs_from_top_to_bottom_with_shorter_trainings(notebook, tmp_path):
    reason = "nbclient or ipykernel is missing: pip install -r requirements/dev.txt"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    import nbformat

    unneeded = shutil.ignore_patterns(".*", "__pycache__", "out", "glue_data", "node_modules")
    project = Path(shutil.copytree(ROOT, tmp_path / "project", ignore=unneeded))
    if notebook.stem == "film_reviews":
        write_film_reviews(project)
    where = {"metadata": {"path": str(project / "notebooks")}}
    cells = nbformat.read(notebook, as_version=4)
    for long, short in SHORTER.get(notebook.stem, {}).items():
        [cell] = [cell for cell in cells.cells if long in cell.source]
        cell.source = cell.source.replace(long, short)
    nbclient.NotebookClient(cells, timeout=1200, resources=where).execute()  # raises what it meets
