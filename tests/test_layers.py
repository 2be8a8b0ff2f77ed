"""Packages import only from packages below them: a reader goes down, and never in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the bottom up. Packages of one line stand side by side.
LAYERS = (
    ("modeling",),
    ("elbert",),
    ("glue",),
    ("runs",),
    ("evaluation",),
    ("training", "exit_lab", "serving"),
    ("experiments",),
)
LEVELS = {package: level for level, packages in enumerate(LAYERS) for package in packages}


def files_of(package: str) -> list[Path]:
    """List a package's files, without the published import names, which stand for all of it."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return [path for path in paths if "published" not in path.parts]


FILES = [path for package in LEVELS for path in files_of(package)]
each_file = pytest.mark.parametrize(
    "path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix()
)


def imported_names(path: Path) -> Iterator[str]:
    """Yield the full name of what a file imports, in functions as well."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = (*above, node.module) if node.module else above
            yield from (".".join((*module, alias.name)) for alias in node.names)


def file_of(name: str) -> Path | None:
    """Find the project's file that a dotted name is, or is in, if any."""
    whole = ROOT.joinpath(*name.split("."))
    for stem in (whole, whole.parent):
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path in FILES:
                return path
    return None


@each_file
def test_a_file_imports_from_its_package_and_from_those_below(path):
    package = path.relative_to(ROOT).parts[0]
    for name in imported_names(path):
        imported_package = name.partition(".")[0]
        if imported_package in LEVELS and imported_package != package:
            assert LEVELS[imported_package] < LEVELS[package], f"{package} imports {name}"


def test_no_file_imports_in_a_circle():
    imported_files = {path: set(map(file_of, imported_names(path))) - {None} for path in FILES}
    finished: set[Path] = set()

    def visit(path: Path, importers: list[Path]) -> None:
        names = [importer.relative_to(ROOT).as_posix() for importer in [*importers, path]]
        assert path not in importers, " > ".join(names)
        if path not in finished:
            for imported in imported_files[path]:
                visit(imported, [*importers, path])
            finished.add(path)

    for path in FILES:
        visit(path, [])


@each_file
def test_no_import_is_for_the_type_checker_alone(path):
    assert "TYPE_CHECKING" not in path.read_text("utf-8")


@pytest.mark.parametrize("package", ["modeling", "elbert"])
def test_the_library_knows_no_files_of_a_scripts_run(package):
    """But for the ones that say whose the paths in a model's folder are, and its labels' order."""
    for path in files_of(package):
        text = path.read_text("utf-8")
        names_them = "training.json" in text or "eval_results.json" in text
        assert not names_them or path.stem == "exit_settings", path
