"""The house: what lies where, and who imports whom."""

import ast
import re
from collections.abc import Iterable
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


def imported(path: Path) -> set[str]:
    """Modules of the project that a module imports, at its top or within a function."""
    found = names_behind(path, ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {name for name in found if name.split(".")[0] in LEVELS}


def names_behind(path: Path, nodes: Iterable[ast.AST]) -> set[str]:
    """The full names that import statements among `nodes`, of the file `path`, bring in."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= imported_from(path, node)
    return found


def imported_from(path: Path, node: ast.ImportFrom) -> set[str]:
    """The full names behind `from .module import name`, written in the file `path`."""
    above = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
    module = ".".join([*above, *filter(None, [node.module])])
    return {module, *(f"{module}.{alias.name}" for alias in node.names)}


def test_the_root_holds_what_users_run():
    assert {path.name for path in ROOT.glob("*.py")} == SCRIPTS


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_no_package_imports_one_above_it(path):
    own = LEVELS.index(named(path).split(".")[0])
    assert {name for name in imported(path) if LEVELS.index(name.split(".")[0]) > own} == set()


def test_modules_import_each_other_in_no_circle():
    """Imports at the top of a module; what a function imports may come later."""
    known = {named(path): path for path in MODULES}
    graph = {
        name: names_behind(path, ast.parse(path.read_text(encoding="utf-8")).body) & known.keys()
        for name, path in known.items()
    }
    while graph:
        leaves = {name for name, needed in graph.items() if not needed & graph.keys() - {name}}
        assert leaves, f"a circle among {sorted(graph)}"
        graph = {name: needed for name, needed in graph.items() if name not in leaves}


def test_no_test_imports_from_a_test():
    """What several share lies beside them: tests/conftest.py, tests/commands.py and the like."""
    for path in (ROOT / "tests").rglob("*.py"):
        found = re.findall(r"^(?:from|import) tests\S*\.test_\w+", path.read_text(), re.M)
        assert found == [], path


def test_the_models_import_each_other_by_relative_names():
    """So that `modeling/` installs as `elbert`."""
    for path in (ROOT / "modeling").rglob("*.py"):
        assert "from modeling" not in path.read_text(encoding="utf-8"), path
