"""The library as an installed package: built, installed outside the checkout, and used there."""

import os
import re
import shutil
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import elbert
from tests.commands import ROOT, ran
from tests.conftest import TINY

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = SETTINGS["tool"]["setuptools"]["packages"]


def test_the_package_has_every_folder():
    folders = {
        path.parent.relative_to(ROOT)
        for name in ("elbert", "modeling")
        for path in (ROOT / name).rglob("__init__.py")
    }
    places = SETTINGS["tool"]["setuptools"]["package-dir"]
    named = {
        Path(places.get(top, top), *inner)
        for top, *inner in (package.split(".") for package in PACKAGES)
    }
    assert named == folders


def write_folders(elsewhere: Path, albert_dir: Path) -> None:
    """What the pages' snippets load: models of the hub by name, trained folders, and a clone's."""
    for bundled in ("docs/demo", "configs"):
        shutil.copytree(ROOT / bundled, elsewhere / bundled)
    tokenizer = elbert.load_tokenizer(albert_dir)
    shutil.copytree(albert_dir, elsewhere / "albert-base-v2")
    for place, model_class in (
        ("asi/albert-act-base", elbert.AlbertActModel),
        ("out/albert_base/RTE", elbert.ElbertForSequenceClassification),
        ("out/demo/RTE", elbert.ElbertForSequenceClassification),
        ("out/ponder/RTE", elbert.PonderAlbertClassifier),
        ("out/act/RTE", elbert.AlbertActForSequenceClassification),
    ):
        model_class(model_class.config_class(**TINY)).save_pretrained(elsewhere / place)
        tokenizer.save_pretrained(elsewhere / place)
    demo = Path(shutil.copytree(ROOT / "docs/demo", elsewhere / "out/reviews/model"))
    (demo / "model.onnx").rename(demo / "classifier-int8.onnx")


@pytest.fixture(scope="module")
def installed(tmp_path_factory, albert_dir):
    """`installed(code)` is what the code prints in an environment that has the wheel alone.

    The wheel's dependencies are those of this environment, which the checkout is no part of.
    """
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    for name in ("elbert", "modeling", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
    ran(*pip, "wheel", *offline, "--no-build-isolation", "-w", folder, source, cwd=folder)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env/bin/python"
    (wheel,) = folder.glob("*.whl")
    ran(sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel, cwd=folder)
    elsewhere = folder / "elsewhere"
    write_folders(elsewhere, albert_dir)
    dependencies = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))

    def run(code: str) -> str:
        return ran(python, "-c", code, cwd=elsewhere, PYTHONPATH=dependencies)

    where = run("import elbert; print(elbert.__file__)")
    assert where.startswith(str(folder / "env"))
    return run


# After a section's snippets, what must hold of their names.
CHECKS = {
    "From PonderALBERT": "assert prediction['logits'].shape == (43, 1, 2)",
    "From Adaptive Depth": "assert outputs.updates.shape == (1, 1, *inputs['input_ids'].shape)",
    "From the annotated PonderNet": "assert loss.item() > 0",
    "From transformers": "assert len(logits) == len(exit_layers) == 2 and report.loaded",
    "LoRA with PEFT": "assert answer.logits.shape == (1, 2)",
    "Train": "assert trainer.state.global_step == 1",
    "Many texts in Python": "assert answer.row in range(len(texts))",
    "Around a step function of your own": "assert net.step.cell.weight_hh.grad.norm() > 0",
}


NAMES = (
    "migration",
    "ponder",
    "act",
    "scale",
    "deployment",
    "big_tables",
    "api",
)
PAGES = ("README.md", *(f"docs/{name}.md" for name in NAMES))


# A block of Python, and what it prints, if the page says so in a block of text behind it.
EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<output>.*?)^```$)?",
    flags=re.DOTALL | re.MULTILINE,
)


NOT_RUN = re.compile(r"^<!-- not run: .*?^```$\n", flags=re.DOTALL | re.MULTILINE)


def examples(page: str) -> dict[str, list[tuple[str, str | None]]]:
    """A page's Python, with what it prints, by the headings of its sections."""
    found = {}
    for section in re.split(r"^## ", (ROOT / page).read_text(encoding="utf-8"), flags=re.M):
        heading = section.splitlines()[0].removeprefix("# ")
        section = NOT_RUN.sub("", section)
        blocks = [(block["code"], block["output"]) for block in EXAMPLE.finditer(section)]
        if blocks:
            found[heading] = [*blocks, (CHECKS.get(heading, ""), None)]
    return found


RUN_SECTIONS = """
import contextlib, io
for heading, blocks in {sections!r}.items():
    names = {{}}
    for code, output in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert output in (None, printed.getvalue()), code + printed.getvalue()
    print("\\n##", heading)
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_pages_snippets_run_as_typed_where_the_package_is_installed(installed, page):
    if page == "docs/scale.md":
        pytest.importorskip("peft")
    sections = examples(page)
    assert sections
    printed = installed(RUN_SECTIONS.format(sections=sections))
    assert re.findall("^## (.*)", printed, flags=re.MULTILINE) == list(sections)


def test_the_reference_has_every_public_name_with_an_example_and_its_output():
    page = "docs/api.md"
    text = (ROOT / page).read_text(encoding="utf-8")
    described = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", text, re.M)}
    shown = ""
    for blocks in examples(page).values():
        shown += "".join(code for code, output in blocks if output)
    for name in elbert.__all__:
        assert name in described or name == "__version__"
        assert re.search(rf"\belbert\.{name}\b", shown), name


@pytest.mark.slow
def test_an_import_of_the_package_makes_all_modes_known(installed):
    code = """
import os
from pathlib import Path
os.environ.pop("GOMP_SPINCOUNT", None)  # of a script in the tests' own process
import elbert, transformers
for name in ("elbert", "ponder_albert", "albert_act"):
    config = transformers.AutoConfig.for_model(name, vocab_size=9, embedding_size=4, hidden_size=4,
        num_attention_heads=1, intermediate_size=4, num_hidden_layers=1)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    print(type(model).__module__.split(".")[0])
from act import AlbertActModel, TFAlbertActModel
is_typed = (Path(elbert.__file__).parent / "py.typed").exists()
print(TFAlbertActModel.__name__, elbert.__version__, is_typed)
print(sorted({"DepthBatcher", "load_pretrained"} & {*dir(elbert)}))
print(os.environ.get("GOMP_SPINCOUNT"))
import modeling
print(all(getattr(elbert, name) is getattr(modeling, name) for name in modeling.__all__))
"""
    assert installed(code).split() == ["modeling"] * 3 + [
        "TFAlbertActModel",
        elbert.__version__,
        "True",
        "['DepthBatcher',",
        "'load_pretrained']",
        "None",
        "True",
    ]


@pytest.mark.parametrize("file", sorted(ROOT.glob("requirements/*.txt")), ids=lambda x: x.name)
def test_every_requirements_file_installs_what_its_commands_need(file):
    """All of the project's commands need requirements.txt, so each file leads to it."""
    while file != ROOT / "requirements.txt":
        text = file.read_text(encoding="utf-8")
        (included,) = re.findall(r"^-r (\S+)$", text, flags=re.MULTILINE)
        file = (file.parent / included).resolve()
