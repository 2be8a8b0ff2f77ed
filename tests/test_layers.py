"""Packages import only from packages below them: a reader goes down, and never in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the bottom up. `training` and `evaluation` stand side by side.
LAYERS = (
    ("elbert_base",),
    ("elbert",),
    ("glue",),
    ("runs",),
    ("answers",),
    ("modes",),
    ("training", "evaluation"),
    ("exit_lab",),
    ("experiments",),
)
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}
# The published import names, for programs that install the package.
FILES = [
    path
    for name in LEVELS
    for path in sorted((ROOT / name).rglob("*.py"))
    if "published" not in path.parts
]


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the full name of what a file imports, in functions as well."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*start, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def file_of(module: str) -> Path | None:
    """Find the project's file that a dotted name is in, if any."""
    parts = module.split(".")
    for end in (len(parts), len(parts) - 1):
        stem = ROOT.joinpath(*parts[:end])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if end and path in KNOWN:
                return path
    return None


KNOWN = set(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_from_its_package_and_from_those_below(path):
    own = path.relative_to(ROOT).parts[0]
    for module in imported_modules(path):
        name = module.partition(".")[0]
        if name in LEVELS and name != own:
            assert LEVELS[name] < LEVELS[own], f"{own} imports {module}"


def test_no_file_imports_in_a_circle():
    graph = {}
    for path in FILES:
        found = {file_of(module) for module in imported_modules(path)}
        # A package's __init__ gathers what its files define.
        graph[path] = {x for x in found if x and x != path and x.name != "__init__.py"}
    done: set[Path] = set()

    def visit(path: Path, above: list[Path]) -> None:
        assert path not in above, " > ".join(str(x.relative_to(ROOT)) for x in [*above, path])
        if path not in done:
            for other in graph[path]:
                visit(other, [*above, path])
            done.add(path)

    for path in FILES:
        visit(path, [])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_is_for_the_type_checker_alone(path):
    assert "TYPE_CHECKING" not in path.read_text("utf-8")


@pytest.mark.parametrize("package", ["elbert_base", "elbert"])
def test_the_library_knows_no_files_of_a_script_s_run(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        text = path.read_text("utf-8")
        assert "training.json" not in text, path
        assert "eval_results.json" not in text, path
