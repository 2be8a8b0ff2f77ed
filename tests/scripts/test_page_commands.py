"""The commands on the pages: every flag exists, and the users' pages run as typed, in their order.

A block that a test cannot run has a comment with the reason above it, which the page does not show:
<!-- not run: needs Docker -->. Blocks marked `text` are output. The names of the hub's models are
folders here, with tiny models; data sets have a few rows.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import transformers

from tests.berts import save, tiny_encoder
from tests.commands import ROOT
from tests.conftest import PAIRS, TINY, made_reviews, sentence, tsv, write_rte, write_sst2
from tests.general_encoders import save_with_tokenizer, tiny_classifier

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]+) -->\n+)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)


def blocks(page: Path) -> list[re.Match]:
    """The page's blocks of shell commands."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [block for block in found if block["language"] == ""]


def script_flags(page: Path) -> list[tuple[str, set[str]]]:
    """The scripts of ours that the page's commands run, each with its flags."""
    found = []
    for block in blocks(page):
        for line in block["code"].replace("\\\n", " ").splitlines():
            for name, rest in re.findall(r"(?:^|[ /])(\w+\.py)\b([^|;#]*)", line):
                if (ROOT / name).exists():
                    found.append((name, set(re.findall(r"--\w+", rest))))
    return found


def test_every_flag_on_the_pages_exists(script):
    known: dict[str, set[str]] = {}
    for page in PAGES:
        for name, flags in script_flags(page):
            passes_on = name in ("make_classifier.py", "reproduce.py")
            readers = (name, "run_glue.py") if passes_on else (name,)
            for reader in readers:
                if reader not in known:
                    main = import_module(reader.removesuffix(".py")).main
                    known[reader] = set(re.findall(r"--\w+", script(main, "--help").out))
            unknown = flags - set().union(*(known[reader] for reader in readers))
            assert not unknown, f"{page.name}: {name}"
    assert len(known) >= 10


# Scripts that neither read nor write the folder of one trained model.
WITHOUT_A_MODEL = {
    "download_glue_data": "data",
    "make_classifier": "makes a project, --output_dir, with the model in its folder `model`",
    "reproduce": "entries with several models each",
    "run_parity": "keeps no model",
}


def test_every_script_calls_the_folder_of_a_trained_model_model_dir(script):
    """As well as by its published name, if it has one."""
    for path in sorted(ROOT.glob("*.py")):
        shown = script(import_module(path.stem).main, "--help").done().out
        assert ("--model_dir" in shown) != (path.stem in WITHOUT_A_MODEL), path.stem
    for path in ("serve", "browser_demo", "spark_classify"):
        assert '"--model_dir"' in (ROOT / f"examples/{path}.py").read_text()


# What stands in for the reader's machine: an environment that is there, no network.
READERS_MACHINE = """
set -euo pipefail
pip() { :; }
source() { :; }
git() { :; }
cd() { :; }
python3() { :; }
"""


def write_tables(folder: Path) -> None:
    """What the pages call reviews.csv, new.csv, train.csv, dev.csv, scenes.csv and more.tsv."""
    reviews = [("text", "label")]
    reviews += [(text, ("negative", "positive")[label]) for text, label in made_reviews()]
    texts = [text for text, _ in reviews[1:]]
    scenes = [("text", "person", "animal", "outdoors")]
    for text in texts:
        scenes.append((text, *(int(word in text) for word in ("man", "dog", "park"))))
    for name, rows in (
        ("reviews.csv", reviews),
        ("train.csv", reviews[:1001]),
        ("dev.csv", [reviews[0], *reviews[1001:]]),
        ("scenes.csv", scenes),
        ("new.csv", [("id", "text"), *enumerate(texts[:9])]),
    ):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    tsv(folder / "more.tsv", PAIRS, [(i, sentence(i), sentence(i + 5)) for i in range(9)])


def write_encoders(folder: Path, albert_dir: Path) -> None:
    """The encoders that the pages name, in folders of these names; texts may have 512 tokens."""
    long = {"max_position_embeddings": 512}
    shape = {**TINY, **long}
    for name in ("albert/albert-base-v2", "albert-base-v2"):
        transformers.AlbertModel(transformers.AlbertConfig(**shape)).save_pretrained(folder / name)
        shutil.copy(albert_dir / "spiece.model", folder / name)
    config = folder / "albert/albert-base-v2/config.json"
    shutil.copy(config, folder / "configs/albert_base_v2.json")
    four_layers = tiny_encoder("bert", **long, num_hidden_layers=4)
    save(four_layers, folder / "google-bert/bert-base-uncased")
    six_layers = tiny_encoder("bert", **long, num_hidden_layers=6)
    save(six_layers, folder / "sentence-transformers/all-MiniLM-L6-v2")
    modernbert = tiny_classifier("modernbert", **long)
    save_with_tokenizer(modernbert, folder / "answerdotai/ModernBERT-base")
    names = {0: "negative", 1: "positive"}
    classifier = tiny_encoder("bert", "ForSequenceClassification", id2label=names, **long)
    save(classifier, folder / "hf/clf")


@pytest.fixture
def desk(tmp_path, albert_dir, trained_once) -> Path:
    """A clone of the project, with what the pages' readers have."""
    unneeded = shutil.ignore_patterns(".*", "__pycache__", "out", "glue_data", "node_modules")
    project = Path(shutil.copytree(ROOT, tmp_path / "project", ignore=unneeded))
    write_encoders(project, albert_dir)
    write_tables(project)
    write_rte(project / "glue_data/RTE")
    write_sst2(project / "glue_data/SST-2")
    shutil.copytree(trained_once, project / "out/demo/RTE")  # of `make demo`
    return project


def shell(folder: Path, code: str) -> str:
    """Run commands of a page in a folder; return what they print."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", READERS_MACHINE + code],
        cwd=folder,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    # The readers' RTE has 2,490 rows. What learns from 24 may have nothing to pick, and says so.
    has_nothing_to_pick = "gives all examples the same answer" in done.stderr
    assert done.returncode == 0 or has_nothing_to_pick, (
        f"{code}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


def commands_and_output(code: str) -> list[tuple[str, str | None]]:
    """Split a block with prompts into its commands, each with what the page says it prints."""
    if not code.startswith("$ "):
        return [(code, None)]
    found = []
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, output = re.sub(r"\\\n\s*", "", part).partition("\n")
        found.append((command, output))
    return found


# Each list in an order in which a page finds what the pages before it left behind.
READERS = {
    "who serves": (
        "README.md",
        "own_data.md",
        "add_exits.md",
        "threshold.md",
        "big_tables.md",
        "deployment.md",
        "onnx.md",
    ),
    "who reproduces": ("README.md", "encoders.md", "glue.md", "scale.md", "ponder.md", "act.md"),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_the_users_pages_run_as_typed(desk, reader):
    for name in READERS[reader]:
        page = ROOT / name if name == "README.md" else ROOT / "docs" / name
        variables = ""
        for block in blocks(page):
            if block["reason"]:
                continue
            for command, output in commands_and_output(block["code"]):
                printed = shell(desk, variables + command)
                if output:
                    assert printed == output, command
            variables += "".join(re.findall(r'^[A-Z]+="[^"]*"\n', block["code"], re.MULTILINE))
