"""The house: what lies where, and who imports whom."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each imports those before it.
LEVELS = ("modeling", "utils", "glue", "training", "evaluation", "exit_lab", "experiments")
SCRIPTS = {
    "change_config.py",
    "convert_albert_original_tf_checkpoint_to_pytorch.py",
    "download_glue_data.py",
    "export_onnx.py",
    "reproduce.py",
    "run_glue.py",
    "run_parity.py",
    "run_pretraining.py",
    "share_layers.py",
    "sweep_exits.py",
}
MODULES = [path for package in LEVELS for path in sorted((ROOT / package).rglob("*.py"))]


def named(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def packages_imported(path: Path) -> set[str]:
    """The project's packages that a module imports by name, at its top or within a function."""
    text = path.read_text(encoding="utf-8")
    return {*re.findall(r"^ *(?:from|import) (\w+)", text, re.M)} & {*LEVELS}


def test_the_root_holds_what_users_run():
    assert {path.name for path in ROOT.glob("*.py")} == SCRIPTS


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_no_package_imports_one_above_it(path):
    own = LEVELS.index(path.relative_to(ROOT).parts[0])
    assert packages_imported(path) <= {*LEVELS[: own + 1]}


def test_no_test_imports_from_a_test():
    """What several share lies beside them: tests/conftest.py, tests/commands.py and the like."""
    for path in (ROOT / "tests").rglob("*.py"):
        found = re.findall(r"^(?:from|import) tests\S*\.test_\w+", path.read_text(), re.M)
        assert found == [], path


def test_the_models_import_each_other_by_relative_names():
    """So that `modeling/` installs as `elbert`."""
    for path in (ROOT / "modeling").rglob("*.py"):
        assert "from modeling" not in path.read_text(encoding="utf-8"), path
