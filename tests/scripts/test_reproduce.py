"""reproduce.py: every entry from its weights to its table, with tiny stand-ins."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AlbertTokenizer

import reproduce
from modeling import AlbertActModel
from reproduce import CARD_TEXT, ENTRIES
from tests.commands import Outcome, exit_status, report_of
from tests.golden_vectors import load_golden
from tests.models import tiny_act

SHORT = ("--max_seq_length", 32, "--max_steps", 2, "--no_cuda")


@pytest.fixture
def reproduced(script, tmp_path, monkeypatch):
    """`reproduced("parity", ...)` runs an entry, its scripts in this process; the result, too."""

    def call(name: str, flags: list[str]) -> None:
        main = importlib.import_module(name.removesuffix(".py")).main
        assert exit_status(main, *flags) == 0

    def run(entry: str, *more: object) -> tuple[Outcome, dict]:
        out = tmp_path / "out"
        done = script(reproduce.main, entry, "--output_dir", out, *more).done()
        return done, json.loads((out / entry / "reproduction.json").read_text())["measured"]

    monkeypatch.setattr("utils.processes.call", call)
    return run


def row(done: Outcome, name: str) -> list[str]:
    """The published and the measured value."""
    cells = next(line for line in done.out.splitlines() if line.startswith(f"| {name} |"))
    return cells.strip("| ").split(" | ")[1:]


@pytest.fixture(scope="module")
def published(tmp_path_factory, spiece) -> Path:
    """An encoder in the layout of asi/albert-act-*: no heads, no keys of this suite's own."""
    folder = tmp_path_factory.mktemp("asi") / "albert-act-tiny"
    model = tiny_act(vocab_size=90, max_position_embeddings=64).float()
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    config = json.loads((folder / "config.json").read_text())
    del config["tau"]
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["AlbertActModel"]}))
    shutil.copy(spiece, folder / "spiece.model")
    return folder


def test_the_list_says_what_each_entry_needs_and_whether_it_was_run(script, tmp_path):
    lines = script(reproduce.main, "--list", "--output_dir", tmp_path).done().out.splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == list(ENTRIES)
    assert "| albert/albert-large-v2 | RTE (fetched) | 0.9 h | 0.003 h | not run |" in lines[2]


@pytest.mark.slow
def test_elbert_from_weights_to_table(reproduced, script, albert_dir, rte, tmp_path):
    where = ("--weights", albert_dir, "--data_dir", rte.parent, *SHORT)
    done, measured = reproduced("elbert-rte", *where)
    report = report_of(tmp_path / "out/elbert-rte/RTE")
    assert measured == {
        "acc": report["metrics"]["acc"],
        "computation cost": report["computation_cost"],
    }
    assert row(done, "acc") == ["0.8123", f"{measured['acc']:.4g}"]
    assert report["rule"]["exit_thres"] == 0.1
    table = script(reproduce.main, "--table", "--list", "--output_dir", tmp_path / "out").done()
    assert table.out.count("| measured |") == 1 + 1  # the list's, and the head of the table
    assert row(table, "acc") == row(done, "acc")
    assert f"Measured with {albert_dir}, with --max_seq_length 32" in table.out


def test_adaptive_depth_on_glue(reproduced, published, rte, tmp_path):
    data = tmp_path / "glue"
    shutil.copytree(rte, data / "RTE")
    where = ("--weights", published, "--data_dir", data, *SHORT)
    done, measured = reproduced("act-glue", *where, "--tasks", "rte")
    assert measured.keys() == {"RTE acc", "RTE computation cost"}
    assert row(done, "RTE acc") == ["63", f"{measured['RTE acc']:.4g}"]
    assert row(done, "CoLA mcc") == ["36.7", "–"]
    # What an earlier run measured stays in the table.
    shutil.copytree(rte, data / "WNLI")
    for file in (data / "WNLI").glob("*.tsv"):
        labels = file.read_text().replace("not_entailment", "0").replace("entailment", "1")
        file.write_text(labels)
    _, both = reproduced("act-glue", *where, "--tasks", "wnli")
    assert both["RTE acc"] == measured["RTE acc"]
    assert "WNLI acc" in both


def test_pretrained_checkpoints_without_and_with_heads(
    reproduced, published, corpus, pretrain, tmp_path
):
    text = ("--text", corpus / "eval.txt")
    done, measured = reproduced("act-pretraining-tiny", "--weights", published, *text)
    assert row(done, "mlm (Acc.)") == ["55.4", "no head"]
    assert 1 <= measured["All tokens"] <= measured["Max iterations"]
    trained = tmp_path / "trained"
    pretrain(trained).done()
    done, measured = reproduced("act-pretraining-tiny", "--weights", trained, *text)
    assert isinstance(measured["mlm (Acc.)"], float)
    assert measured["[CLS]"] >= 1


def test_the_model_cards_example(reproduced, tmp_path):
    """The published implementation's weights, with a vocabulary of the card's words."""
    config, weights, _ = load_golden("act_model")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "albert"}))
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    words = dict.fromkeys(f"▁{word}" for word in CARD_TEXT.split())
    vocabulary = [*((piece, 0.0) for piece in pieces), *((word, -1.0) for word in words)]
    tokenizer = AlbertTokenizer(vocab=vocabulary)
    tokenizer.save_pretrained(tmp_path)
    done, measured = reproduced("act-updates", "--weights", tmp_path)
    with torch.no_grad():
        model = AlbertActModel.from_pretrained(tmp_path).eval()
        updates = model(**tokenizer(CARD_TEXT, return_tensors="pt")).updates.flatten().tolist()
    assert list(measured.values())[:-1] == updates
    assert list(measured)[:3] == ["1 [CLS]", "2 ▁a", "3 ▁lump"]
    assert row(done, "16 [SEP]") == ["8", f"{updates[-1]:g}"]
    assert row(done, "3 ▁lump")[0] == "10"
    assert list(measured)[:-1] == list(ENTRIES["act-updates"]["published"])


@pytest.mark.slow
def test_commands_run_as_a_user_would_give_them(script, tmp_path):
    few = ("--epochs", 1, "--n_batches", 2, "--batch_size", 16, "--n_hidden", 8)
    done = script(reproduce.main, "parity", "--output_dir", tmp_path, *few).done()
    assert f"$ python run_parity.py --seed 1 --output_dir {tmp_path}/parity" in done.out
    assert row(done, "steps")[0] == "figure"
    assert "with --epochs 1" in done.out
