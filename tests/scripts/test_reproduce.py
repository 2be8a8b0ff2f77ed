"""reproduce.py: an entry from its weights to its table, with tiny stand-ins."""

import importlib
import json
import shutil

import pytest
import torch
from transformers import AlbertTokenizer

import reproduce
from elbert import AlbertActConfig, AlbertActForPreTraining, load_act
from tests.commands import Outcome, exit_status, main_of, report_of
from tests.conftest import TINY

SHORT = ("--max_seq_length", 32, "--max_steps", 2, "--no_cuda")


@pytest.fixture
def reproduced(script, tmp_path, monkeypatch):
    """`reproduced("parity", ...)` runs an entry, its scripts in this process."""

    def call(name: str, flags: list[str]) -> None:
        folder, _, script_name = name.rpartition("/")
        if folder:
            main = main_of(script_name)
        else:
            main = importlib.import_module(name.removesuffix(".py")).main
        assert exit_status(main, *flags) == 0

    monkeypatch.setattr(reproduce, "call", call)
    return lambda *entry: script(reproduce.main, *entry, "--output_dir", tmp_path / "out").done()


def row(done: Outcome, name: str) -> list[str]:
    """The published and the measured value."""
    cells = next(line for line in done.out.splitlines() if line.startswith(f"| {name} |"))
    return cells.strip("| ").split(" | ")[1:]


def test_the_list_says_what_each_entry_needs_and_whether_it_was_run(reproduced):
    printed = reproduced().out
    assert "| albert/albert-large-v2 | RTE (fetched) | 0.9 h | 0.003 h | not run |" in printed
    assert printed.count("| not run |") == len(reproduce.ENTRIES)


@pytest.mark.slow
def test_elbert_from_weights_to_table(reproduced, albert_dir, rte, tmp_path):
    done = reproduced("elbert-rte", "--weights", albert_dir, "--data_dir", rte.parent, *SHORT)
    report = report_of(tmp_path / "out/elbert-rte/RTE")
    assert row(done, "RTE acc") == ["0.8123", f"{report['metrics']['acc']:.4g}"]
    assert row(done, "RTE computation_cost")[1] == f"{report['computation_cost']:.4g}"
    assert report["rule"]["exit_thres"] == 0.1
    assert row(reproduced(), "RTE acc") == row(done, "RTE acc")
    assert reproduced().out.count("| measured |") == 1


def test_adaptive_depth_on_glue(reproduced, albert_dir, rte, tmp_path):
    data = tmp_path / "glue"
    shutil.copytree(rte, data / "RTE")
    where = ("--weights", albert_dir, "--data_dir", data, *SHORT, "--tasks", "RTE")
    done = reproduced("act-glue", *where)
    report = report_of(tmp_path / "out/act-glue/RTE")
    assert row(done, "RTE acc") == ["0.63", f"{report['metrics']['acc']:.4g}"]
    assert row(done, "CoLA mcc") == ["0.367", "–"]


@pytest.fixture
def act_dir(tmp_path, spiece):
    """A pre-trained Adaptive Depth model, with all heads."""
    torch.manual_seed(0)
    folder = tmp_path / "act"
    config = AlbertActConfig(**{**TINY, "max_position_embeddings": 64}, tau=0.001)
    AlbertActForPreTraining(config).save_pretrained(folder)
    shutil.copy(spiece, folder / "spiece.model")
    return folder


def test_adaptive_depths_table_of_pretrained_models(reproduced, act_dir, corpus, tmp_path):
    """Nine rows a model, two of them counted as published, beside the published values."""
    text = ("--eval_file", corpus / "eval.txt", "--max_seq_length", 16, "--no_cuda")
    done = reproduced("act-pretraining", "--weights", act_dir, "--tasks", "tiny", *text)
    report = report_of(tmp_path / "out/act-pretraining/tiny")
    assert row(done, "tiny mlm_acc") == ["0.554", f"{report['mlm_acc']:.4g}"]
    assert row(done, "tiny All tokens") == ["3.8", f"{report['updates']['All tokens']:.4g}"]
    published = report["updates_as_published"]
    assert row(done, "tiny [MASK/random]") == ["5.8", f"{published['[MASK/random]']:.4g}"]
    assert row(done, "base [CLS]") == ["22.5", "–"]
    rows = [line for line in done.out.splitlines() if line.startswith("| small ")]
    assert len(rows) == 2 + 9  # τ and the most updates, and the table's nine


def test_adaptive_depths_printed_updates(reproduced, act_dir, albert_dir, script, tmp_path):
    done = reproduced("act-updates", "--weights", act_dir)
    model = load_act(act_dir)[0].albert.eval()
    tokenizer = AlbertTokenizer.from_pretrained(act_dir)
    text = "a lump in the middle of the monkeys stirred and then fell quiet ."
    with torch.inference_mode():
        updates = model(**tokenizer(text, return_tensors="pt")).updates.flatten()
    assert row(done, "card 1 [CLS]") == ["15", f"{updates[0]:.4g}"]
    counts = json.loads((tmp_path / "out/act-updates/card/updates.json").read_text())
    assert [*counts.values()] == updates.tolist()
    where = ("--output_dir", tmp_path, "--weights")
    sizes = ("act-pretraining", *where, act_dir)
    script(reproduce.main, *sizes).refused("give its task: --tasks tiny or small or base")
    flags = ("--model_dir", albert_dir, "--text", text)
    script(main_of("token_updates.py"), *flags).refused(albert_dir, "no halting head")


@pytest.mark.slow
def test_commands_run_as_a_user_would_give_them(script, tmp_path):
    few = ("--epochs", 1, "--n_batches", 2, "--batch_size", 16, "--n_hidden", 8)
    done = script(reproduce.main, "parity", "--output_dir", tmp_path, *few).done()
    assert f"$ python run_parity.py --seed 1 --output_dir {tmp_path}/parity/vectors" in done.out
    assert row(done, "vectors steps")[0] == "figure"
