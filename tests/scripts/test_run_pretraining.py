"""run_pretraining.py from its flags to its files: tokenizer, training, evaluation, resuming."""

import json
import math
import re
import runpy
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import run_pretraining
from modeling import (
    AlbertActConfig,
    AlbertActForPreTraining,
    AlbertActModel,
    load_pretrained,
    load_tokenizer,
)
from tests.berts import save, tiny_bert
from tests.conftest import TINY, contents, edit_json, sentence, tsv, write_rte
from tests.forks import assert_same_weights, run, run_together, survive_kills
from training.checkpoints import checkpoints_of
from training.pretraining_data import PretrainingData, TokenClass
from training.pretraining_settings import Recipe

ROOT = Path(run_pretraining.__file__).parent
MODELS = {"albert": transformers.AlbertForPreTraining, "albert_act": AlbertActForPreTraining}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """30 documents of 1 to 4 sentences, a config.json and a longer text for evaluation."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, count in (("train", 30), ("eval", 12)):
        documents = [[sentence(5 * i + j, 4 + j) for j in range(i % 4 + 1)] for i in range(count)]
        text = "\n\n".join("\n".join(lines) for lines in documents)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    # No dropout: chance would differ between one process and two.
    config = {**TINY, "num_hidden_layers": 3, "tau": 0.001, "classifier_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def flags(corpus, spiece, out, *more, kind: str = "albert_act", do: str = "train") -> list:
    """Six steps of short examples and two of longer ones, two batches of four each."""
    values = {
        "model_type": kind,
        "config_name": corpus / "config.json",
        "tokenizer_name": spiece.parent,
        "train_files": corpus / "train.txt",
        "eval_file": corpus / "eval.txt",
        "output_dir": out,
        "max_seq_length": 16,
        "long_seq_length": 32,
        "long_fraction": 0.25,
        "max_steps": 8,
        "warmup_steps": 2,
        "per_gpu_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "optimizer": "adamw",
        "shuffle_buffer": 8,
        "logging_steps": 1,
        "seed": 3,
    }
    pairs = [str(x) for name, value in values.items() for x in (f"--{name}", value)]
    return [*pairs, f"--do_{do}", "--no_cuda", *map(str, more)]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in re.findall(r"^{.*step.*}$", text, re.M)]


# The loop.


@pytest.mark.parametrize("kind", ["albert", "albert_act"])
def test_training_reports_and_evaluation_prints_the_table(kind, corpus, spiece, tmp_path, script):
    out = tmp_path / "out"
    outcome = script(run_pretraining.main, *flags(corpus, spiece, out, "--do_eval", kind=kind))
    assert outcome.status == 0, outcome.err
    logged = lines(outcome.out)
    assert [line["step"] for line in logged] == list(range(1, 9))
    assert {"loss", "mlm_loss", "mlm_acc", "sop_loss", "sop_acc", "learning_rate"} <= set(logged[0])
    assert ("updates/MASK/MASK" in logged[0]) == (kind == "albert_act")
    events = EventAccumulator(str(out / "runs")).Reload()
    logged_names = {name for line in logged for name in line} - {"step"}
    assert set(events.Tags()["scalars"]) == logged_names
    report = json.loads((out / "eval_results.json").read_text())
    for name in ("mlm_acc", "sop_acc", "loss"):
        assert f"{name} = {report[name]:.4f}" in outcome.out
    rows = ["All tokens", "All unmasked tokens", "[MASK/MASK]", "[MASK/random]", "[MASK/original]"]
    rows += ["[CLS]", "[SEP]"]
    assert list(report["updates"]) == (rows if kind == "albert_act" else [])
    for name, value in report["updates"].items():
        assert 1 <= value <= 3
        assert f"\n| {name} | {value:.2f} |\n" in outcome.out
    loaded = MODELS[kind].from_pretrained(out)
    assert loaded.config.model_type == kind


def test_evaluation_is_the_models_own_answer(corpus, spiece, tmp_path, script):
    """Against AlbertActForPreTraining's forward over the same text, one example at a time."""
    out = tmp_path / "out"
    script(run_pretraining.main, *flags(corpus, spiece, out, "--do_eval"))
    report = json.loads((out / "eval_results.json").read_text())
    recipe = Recipe(max_seq_length=16, seed=3, shuffle_buffer=8)
    data = PretrainingData([corpus / "eval.txt"], False, load_tokenizer(out), recipe, batch_size=1)
    model = AlbertActForPreTraining.from_pretrained(out).eval()
    losses, correct, updates = [], [], []
    for batch in data.evaluation_batches((0, 1)):
        masked = batch["labels"] != -100
        answer = model(batch["input_ids"], token_type_ids=batch["token_type_ids"])
        logits = answer.prediction_logits[masked]
        losses += torch.nn.functional.cross_entropy(
            logits, batch["labels"][masked], reduction="none"
        ).tolist()
        correct += (logits.argmax(-1) == batch["labels"][masked]).tolist()
        kept = batch["token_classes"] == TokenClass.UNMASKED
        updates += answer.updates[:, 0, 0][kept].tolist()
    assert report["mlm_loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert report["mlm_acc"] == pytest.approx(sum(correct) / len(correct))
    assert report["updates"]["All unmasked tokens"] == pytest.approx(sum(updates) / len(updates))


def test_both_kinds_of_checkpoint_go_into_fine_tuning(corpus, spiece, tmp_path, script):
    out = tmp_path / "dense"
    script(run_pretraining.main, *flags(corpus, spiece, out, kind="albert"))
    model, report = load_pretrained(out)
    assert not [name for name in report.initialised if "exit" not in name]
    trained = weights(out)
    for name, tensor in model.state_dict().items():
        if name in trained:
            assert torch.equal(tensor, trained[name])


@pytest.mark.parametrize("kind", ["albert", "albert_act"])
def test_another_folders_model_is_evaluated_and_trained_on(kind, corpus, spiece, tmp_path, script):
    """The results are those of its own folder; a learning rate of 0 keeps all of its weights."""
    source, results, out = tmp_path / "source", tmp_path / "results", tmp_path / "out"
    made = script(run_pretraining.main, *flags(corpus, spiece, source, "--do_eval", kind=kind))
    assert made.status == 0, made.err
    before, more = contents(source), ("--model_name_or_path", source)
    command = flags(corpus, spiece, results, *more, kind=kind, do="eval")
    outcome = script(run_pretraining.main, *command)
    assert outcome.status == 0, outcome.err
    assert (results / "eval_results.json").read_bytes() == before["eval_results.json"]
    command = flags(corpus, spiece, out, *more, "--learning_rate", 0, kind=kind)
    for name in ("--config_name", "--tokenizer_name"):  # the source's own
        del command[command.index(name) : command.index(name) + 2]
    outcome = script(run_pretraining.main, *command)
    assert outcome.status == 0, outcome.err
    assert_same_weights(out, source)
    assert contents(source) == before


def test_what_cannot_be_started_from_or_evaluated(corpus, spiece, tmp_path, script):
    """A BERT, whose layers differ; an encoder without what predicts words."""
    bert, encoder = save(tiny_bert(), tmp_path / "bert"), tmp_path / "encoder"
    command = flags(corpus, spiece, tmp_path / "out", "--model_name_or_path", bert)
    del command[2:4]  # --config_name
    outcome = script(run_pretraining.main, *command)
    assert (outcome.status, "share_layers.py" in outcome.err) == (2, True)
    config = AlbertActConfig.from_pretrained(corpus)
    AlbertActModel(config).save_pretrained(encoder)
    more = ("--model_name_or_path", encoder)
    outcome = script(
        run_pretraining.main, *flags(corpus, spiece, tmp_path / "out", *more, do="eval")
    )
    assert outcome.status == 2
    assert "no weights for predictions." in outcome.err


def test_a_tokenizer_comes_out_of_the_text(corpus, tmp_path, script):
    out = tmp_path / "tokenizer"
    outcome = script(
        run_pretraining.main,
        *("--train_tokenizer", "--train_files", corpus / "train.txt", "--vocab_size", 40),
        *("--output_dir", out, "--do_lower_case"),
    )
    assert outcome.status == 0, outcome.err
    assert len(load_tokenizer(out)) == 40


def test_tokenizer_and_training_in_one_command(corpus, spiece, tmp_path, script):
    out = tmp_path / "out"
    command = flags(corpus, spiece, out, "--train_tokenizer", "--vocab_size", 40)
    where = command.index("--tokenizer_name")
    outcome = script(run_pretraining.main, *command[:where], *command[where + 2 :])
    assert outcome.status == 0, outcome.err
    assert len(load_tokenizer(out)) == 40


def test_a_new_tokenizer_takes_the_place_of_an_old_one(corpus, spiece, tmp_path, script):
    """Neither written beside the tokenizer of a model that is there, nor left unused behind it."""
    out = tmp_path / "out"
    command = flags(corpus, spiece, out)
    assert script(run_pretraining.main, *command).status == 0
    alone = ["--train_tokenizer", "--train_files", corpus / "train.txt", "--output_dir", out]
    outcome = script(run_pretraining.main, *alone, "--vocab_size", 41)
    assert (outcome.status, "is not empty" in outcome.err) == (2, True)
    where = command.index("--tokenizer_name")
    again = [*command[:where], *command[where + 2 :], "--train_tokenizer", "--vocab_size", 41]
    outcome = script(run_pretraining.main, *again, "--overwrite_output_dir")
    assert outcome.status == 0, outcome.err
    assert len(load_tokenizer(out)) == 41
    assert script(run_pretraining.main, *again, "--resume_from_checkpoint").status == 0
    assert len(load_tokenizer(out)) == 41


def test_a_finished_run_without_its_weights_goes_on(corpus, spiece, tmp_path, script):
    out = tmp_path / "out"
    command = flags(corpus, spiece, out, "--save_steps", 3, "--resume_from_checkpoint")
    script(run_pretraining.main, *command)
    trained = weights(out)
    (out / "model.safetensors").unlink()
    outcome = script(run_pretraining.main, *command)
    assert outcome.status == 0, outcome.err
    assert weights(out).keys() == trained.keys()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights(out).items())


def test_tau_weighs_the_ponder_cost(corpus, spiece, tmp_path, script):
    losses = []
    for tau in (0, 2):
        outcome = script(
            run_pretraining.main, *flags(corpus, spiece, tmp_path / str(tau), "--tau", tau)
        )
        losses.append(lines(outcome.out)[0])
    free, dear = losses
    assert free["loss"] == pytest.approx(free["mlm_loss"] + free["sop_loss"], abs=1e-5)
    assert dear["loss"] - free["loss"] == pytest.approx(2 * free["ponder_cost"], rel=1e-5)


def test_a_model_of_another_kind_or_a_damaged_one_is_refused(corpus, spiece, tmp_path, script):
    out = tmp_path / "out"
    assert script(run_pretraining.main, *flags(corpus, spiece, out)).status == 0
    command = flags(corpus, spiece, out, kind="albert", do="eval")
    outcome = script(run_pretraining.main, *command)
    assert outcome.status == 2
    assert "of --model_type albert_act, not albert" in outcome.err
    path = out / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    outcome = script(run_pretraining.main, *flags(corpus, spiece, out, do="eval"))
    assert (outcome.status, "model.safetensors is damaged" in outcome.err) == (2, True)


# LAMB, and precision.


def test_lamb_trains(corpus, spiece, tmp_path, script):
    pytest.importorskip("pytorch_optimizer")
    out = tmp_path / "out"
    command = flags(corpus, spiece, out, "--optimizer", "lamb", "--save_steps", 3)
    outcome = script(run_pretraining.main, *command)
    assert outcome.status == 0, outcome.err
    losses = [line["mlm_loss"] for line in lines(outcome.out)]
    assert all(map(math.isfinite, losses))
    assert_resumes_to_the_same(out, command, script)


def test_bf16_trains(corpus, spiece, tmp_path, script):
    out = tmp_path / "out"
    outcome = script(run_pretraining.main, *flags(corpus, spiece, out, "--bf16"))
    assert outcome.status == 0, outcome.err
    assert {tensor.dtype for tensor in weights(out).values()} == {torch.float32}


# Resuming, and several processes.


def assert_resumes_to_the_same(out: Path, command: list, script) -> None:
    """From every checkpoint that a finished run left."""
    whole = weights(out)
    assert len(checkpoints_of(out)) > 1
    for checkpoint in checkpoints_of(out):
        resumed = script(run_pretraining.main, *command, "--resume_from_checkpoint", checkpoint)
        assert resumed.status == 0, resumed.err
        steps = [line["step"] for line in lines(resumed.out)]
        assert steps == list(range(int(checkpoint.name.split("-")[1]) + 1, 9))
        assert all(torch.equal(whole[name], tensor) for name, tensor in weights(out).items())


@pytest.mark.parametrize("kind", ["albert", "albert_act"])
def test_a_stopped_run_goes_on_to_the_same_bits(kind, corpus, spiece, tmp_path, script):
    """Amid an epoch, at the last step of the first phase (6), and in the second phase; with
    dropout."""
    out, config = tmp_path / "out", tmp_path / "config.json"
    config.write_bytes((corpus / "config.json").read_bytes())
    edit_json(config, hidden_dropout_prob=0.1, classifier_dropout_prob=0.1)
    command = flags(corpus, spiece, out, "--save_steps", 1, "--config_name", config, kind=kind)
    assert script(run_pretraining.main, *command).status == 0
    assert_resumes_to_the_same(out, command, script)


@pytest.mark.slow
def test_a_run_killed_at_twenty_and_more_moments_ends_with_the_same_bits(corpus, spiece, tmp_path):
    def command(out: Path) -> list:
        return flags(corpus, spiece, out, "--save_steps", 2, "--resume_from_checkpoint")

    reference = tmp_path / "reference"
    assert run(flags(corpus, spiece, reference, "--save_steps", 0), main=run_pretraining.main) == 0
    survive_kills(command, reference, tmp_path, seed=6, main=run_pretraining.main)


def test_other_text_is_refused_when_resuming(corpus, spiece, tmp_path, script):
    out = tmp_path / "out"
    command = flags(corpus, spiece, out, "--save_steps", 3)
    script(run_pretraining.main, *command)
    last = checkpoints_of(out)[-1]
    other = [*command, "--train_files", corpus / "eval.txt", "--resume_from_checkpoint", last]
    outcome = script(run_pretraining.main, *other)
    assert outcome.status == 2
    assert "training examples or their tokens are others" in outcome.err


def test_two_processes_take_the_steps_of_one(corpus, spiece, tmp_path):
    logs = []
    for count in (1, 2):
        log, out = tmp_path / f"log{count}", tmp_path / f"out{count}"
        command = flags(corpus, spiece, out, "--do_eval", "--adam_epsilon", 1e-3)
        command += ["--per_gpu_train_batch_size", 4 // count, "--per_gpu_eval_batch_size", 3]
        status = run_together(count, command, log, main=run_pretraining.main)
        assert status == [0] * count, log.with_suffix(".0").read_text()
        logs.append(lines(log.with_suffix(".0").read_text()))
    for one, two in zip(*logs, strict=True):
        assert two == pytest.approx(one, abs=1e-5)
    reports = [json.loads((tmp_path / f"out{i}/eval_results.json").read_text()) for i in (1, 2)]
    assert reports[0]["examples"] == reports[1]["examples"]
    assert reports[0]["updates"] == pytest.approx(reports[1]["updates"], abs=1e-5)
    assert lines((tmp_path / "log2.1").read_text()) == []  # only the main process speaks


# Errors.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--tau", "-0.1"], ["--tau", "0 or more"]),
        (["--train_files", "/nowhere/text.txt"], ["/nowhere/text.txt", "No such file"]),
        (["--config_name", "/nowhere"], ["/nowhere"]),
        (["--max_seq_length", "64"], ["--max_seq_length 64", "max_position_embeddings = 40"]),
        (["--long_seq_length", "64"], ["--long_seq_length 64", "max_position_embeddings = 40"]),
        (["--per_gpu_train_batch_size", "1"], ["not one example at length 32", "at least 2"]),
        (["--per_gpu_train_batch_size", "500"], ["fewer examples than the 500"]),
        (["--model_type", "albert", "--tau", "0.1"], ["--tau", "albert_act"]),
        (["--long_fraction", "1.5"], ["--long_fraction", "from 0 to 1"]),
        (["--do_eval", "--eval_file", "/nowhere"], ["/nowhere"]),
        (["--train_tokenizer"], ["--train_tokenizer", "--tokenizer_name", "one of the two"]),
    ],
)
def test_flags_that_cannot_be(more, words, corpus, spiece, tmp_path, script):
    outcome = script(run_pretraining.main, *flags(corpus, spiece, tmp_path / "out", *more))
    assert outcome.status == 2
    assert not lines(outcome.out)  # nothing was trained
    for word in words:
        assert word in outcome.err


@pytest.mark.parametrize("bad", [b"", b"\n \n", b"a dog runs\n\xff\xfe\n"])
def test_a_text_that_cannot_be_read_leaves_nothing_behind(bad, corpus, spiece, tmp_path, script):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_bytes(bad)
    outcome = script(run_pretraining.main, *flags(corpus, spiece, out, "--train_files", text))
    assert (outcome.status, str(text) in outcome.err) == (2, True)
    assert not list(out.iterdir())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("vocab_size", 20, ["pieces", "vocab_size is 20"]),
        ("act_epsilon", 0, ["act_epsilon", "from 0 to 1, both excluded"]),
        ("act_epsilon", 1.5, ["act_epsilon", "from 0 to 1, both excluded"]),
        ("tau", -1, ["tau", "at least 0"]),
        ("hidden_size", 33, ["hidden_size", "num_attention_heads"]),
    ],
)
def test_configurations_that_cannot_be(key, value, words, corpus, spiece, tmp_path, script):
    config = tmp_path / "config.json"
    config.write_bytes((corpus / "config.json").read_bytes())
    edit_json(config, **{key: value})
    outcome = script(
        run_pretraining.main, *flags(corpus, spiece, tmp_path / "out", "--config_name", config)
    )
    assert outcome.status == 2
    for word in words:
        assert word in outcome.err


def test_nothing_to_do_and_nothing_to_read(tmp_path, script):
    outcome = script(run_pretraining.main, "--output_dir", tmp_path)
    assert (outcome.status, "nothing to do" in outcome.err) == (2, True)
    outcome = script(run_pretraining.main, "--output_dir", tmp_path, "--do_train")
    assert (outcome.status, "--train_files is missing" in outcome.err) == (2, True)
    outcome = script(run_pretraining.main, "--output_dir", tmp_path, "--do_eval")
    assert (outcome.status, "--eval_file is missing" in outcome.err) == (2, True)


# The example's text.


def test_glue_sentences_become_documents(tmp_path, script):
    write_rte(tmp_path / "RTE")
    rows = [("x", i % 2, "", f"sentence  {i}") for i in range(3)]
    tsv(tmp_path / "CoLA/train.tsv", "\t".join(map(str, rows[0])), rows)
    output = tmp_path / "text.txt"
    main = runpy.run_path(str(ROOT / "examples/glue_text.py"))["main"]
    outcome = script(main, "--data_dir", tmp_path, "--output", output)
    assert outcome.status == 0, outcome.err
    documents = output.read_text().split("\n\n")
    assert documents[:3] == ["sentence 0", "sentence 1", "sentence 2"]
    assert documents[3] == f"{sentence(0)}\n{sentence(1, 1)}"
    assert len(documents) == 3 + 24
