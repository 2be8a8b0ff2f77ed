"""run_glue.py from its flags to its files: the published loop, every kind of task, bad input."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import change_config
import run_glue
import training.checkpoints as checkpointing
from evaluation import results
from modeling import ElbertForSequenceClassification
from tests.commands import flags, no_file_above, refused
from tests.conftest import TINY, contents, edit_json, sentence, tsv

ROOT = Path(run_glue.__file__).parent
LABELS = ("contradiction", "entailment", "neutral")


@pytest.fixture
def trained(albert_dir, rte, tmp_path, script) -> Path:
    """An RTE model, trained for one epoch."""
    out = tmp_path / "out/RTE"
    outcome = script(run_glue.main, *flags(albert_dir, rte, out, "RTE", "--do_train"))
    assert outcome.status == 0, outcome.err
    return out


@pytest.mark.slow
def test_the_published_loop_runs_from_the_shell(trained, albert_dir, rte, script):
    """Train, edit a threshold, evaluate at batch size 1, the last as a process of its own."""
    out = trained.parent
    where = ("--task", "RTE", "--model", "tiny", "--out_dir", out)
    edited = script(change_config.main, "--key", "exit_thres", "--value", "0.9", *where)
    assert "exit_thres 0.1 -> 0.9" in edited.out
    common = flags(albert_dir, rte, trained, "RTE", "--do_eval", "--out_mode", "all")
    done = subprocess.run(
        [sys.executable, "run_glue.py", *common],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Computation cost"))
    assert re.fullmatch(r"Computation cost: [01]\.\d{4}", lines[start])
    assert lines[start + 1] == "***** Eval results  *****"
    assert re.fullmatch(r"acc = [01]\.\d+", lines[start + 2])


def test_evaluation_writes_its_reports(trained, albert_dir, rte, script):
    common = flags(albert_dir, rte, trained, "RTE", "--do_eval")
    outcome = script(run_glue.main, *common, "--out_mode", "one")
    assert outcome.status == 0, outcome.err
    report = json.loads((trained / "eval_results.json").read_text())
    assert f"Computation cost: {report['computation_cost']:.4f}" in outcome.out
    assert f"acc = {report['metrics']['acc']}" in outcome.out
    assert report["examples"] == sum(report["exits_per_layer"]) == 10
    assert {"latency_ms", "flops_ratio", "rule", "environment", "average_layer"} <= set(report)
    script(run_glue.main, *common, "--out_mode", "all")
    rows = list(csv.reader((trained / "eval_results.txt").open()))
    assert [row[1] for row in rows] == ["exit_thres", "0.10", "0.10"]
    assert rows[1] == rows[2]
    statistics = trained / "stat_out/albert/rte"
    assert {path.name for path in statistics.iterdir()} == {"layers_all.csv", "layers_exit.csv"}
    every = list(csv.DictReader((statistics / "layers_all.csv").open()))
    assert [float(row["accuracy"]) for row in every] == pytest.approx(
        report["acc_per_layer"], abs=1e-6
    )
    assert (trained / "exits.png").read_bytes().startswith(b"\x89PNG")


def test_the_batch_size_changes_no_answer(trained, albert_dir, rte, script):
    edit_json(trained / "config.json", exit_thres=0.99, thres_name="entropy")
    reports = []
    for size in (1, 4):
        common = flags(albert_dir, rte, trained, "RTE", "--do_eval")
        script(run_glue.main, *common, "--per_gpu_eval_batch_size", size)
        reports.append(json.loads((trained / "eval_results.json").read_text()))
    for key in ("metrics", "computation_cost", "exits_per_layer", "flops_ratio"):
        assert reports[0][key] == reports[1][key]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_says_how_many_exits_are_those_of_fp32(
    trained, albert_dir, rte, script, dtype
):
    edit_json(trained / "config.json", exit_thres=0.99, thres_name="entropy")
    common = flags(albert_dir, rte, trained, "RTE", "--do_eval")
    script(run_glue.main, *common)
    expected = json.loads((trained / "eval_results.json").read_text())
    assert (expected["dtype"], expected["same_exit_layer_as_fp32"]) == ("fp32", 1.0)
    outcome = script(run_glue.main, *common, "--dtype", dtype)
    assert outcome.status == 0, outcome.err
    report = json.loads((trained / "eval_results.json").read_text())
    same = report["same_exit_layer_as_fp32"]
    assert report["dtype"] == dtype
    assert f"exit layers as in fp32 = {same:.4f}" in outcome.out
    pairs = zip(report["exits_per_layer"], expected["exits_per_layer"], strict=True)
    moved = sum(abs(a - b) for a, b in pairs) / 2
    assert moved <= round(10 * (1 - same)) <= 2  # of 10 examples


def test_auto_does_what_eager_mode_does_at_batch_size_one(
    trained, albert_dir, rte, script, monkeypatch
):
    def no_compiler(*_, **__):
        raise AssertionError("--compile auto on a CPU compiles nothing")

    monkeypatch.setattr(torch, "compile", no_compiler)
    monkeypatch.setattr(torch.nn.Module, "compile", no_compiler)
    reports = []
    for mode in ("off", "auto"):
        common = flags(albert_dir, rte, trained, "RTE", "--do_eval", "--compile", mode)
        assert script(run_glue.main, *common).status == 0
        report = json.loads((trained / "eval_results.json").read_text())
        del report["latency_ms"]
        reports.append(report)
    assert reports[0] == reports[1]
    assert not reports[1]["compiled"]


def test_exit_config_overrides_at_evaluation(trained, albert_dir, rte, script):
    (trained / "exit_config.json").write_text('{"thres_name": "entropy", "exit_thres": 0.0}')
    common = flags(albert_dir, rte, trained, "RTE", "--do_eval")
    edit_json(trained / "config.json", thres_name="entropy", exit_thres=1.0, margin=0.5)
    assert "Computation cost: 0.2500" in script(run_glue.main, *common).out
    edit_json(trained / "config.json", exit_config_path="exit_config.json")
    assert "Computation cost: 1.0000" in script(run_glue.main, *common).out
    edit_json(trained / "exit_config.json", exit_thres=2)
    outcome = script(run_glue.main, *common)
    assert outcome.status == 2
    assert "exit_config.json: exit_thres = 2" in outcome.err


def test_mixed_precision_with_checkpointing_trains_float32_weights(
    albert_dir, rte, tmp_path, script
):
    common = flags(albert_dir, rte, tmp_path / "out", "RTE", "--do_train")
    outcome = script(run_glue.main, *common, "--bf16", "--gradient_checkpointing")
    assert outcome.status == 0, outcome.err
    weights = load_file(tmp_path / "out/model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_training_is_a_function_of_the_seed(albert_dir, rte, tmp_path, script):
    models = []
    for name in ("a", "b"):
        out = tmp_path / name
        script(run_glue.main, *flags(albert_dir, rte, out, "RTE", "--do_train", "--seed", 7))
        models.append(ElbertForSequenceClassification.from_pretrained(out).state_dict())
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


def test_prediction_writes_the_official_file_and_the_details(trained, albert_dir, rte, script):
    outcome = script(run_glue.main, *flags(albert_dir, rte, trained, "RTE", "--do_predict"))
    assert outcome.status == 0, outcome.err
    official = (trained / "RTE.tsv").read_text().splitlines()
    assert official[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in official[1:]] == list("01234")
    details = list(csv.DictReader((trained / "predictions.tsv").open(), delimiter="\t"))
    assert list(details[0]) == ["index", "label", "prediction", "confidence", "exit_layer"]
    for line, row in zip(official[1:], details, strict=True):
        assert line.split("\t")[1] == row["prediction"]
        assert row["prediction"] in ("entailment", "not_entailment")
        assert 0.5 <= float(row["confidence"]) <= 1
        assert 1 <= int(row["exit_layer"]) <= 4


def test_mnli_evaluates_and_predicts_both_halves(albert_dir, tmp_path, script):
    data, out = tmp_path / "MNLI", tmp_path / "out/MNLI"
    header = "index\tsentence1\tsentence2\tgold_label"
    for name in ("train", "dev_matched", "dev_mismatched"):
        rows = [(i, sentence(i), sentence(i + 2), LABELS[i % 3]) for i in range(9)]
        tsv(data / f"{name}.tsv", header, rows)
    for name in ("test_matched", "test_mismatched"):
        rows = [(i, sentence(i), sentence(i + 2)) for i in range(4)]
        tsv(data / f"{name}.tsv", "index\tsentence1\tsentence2", rows)
    common = flags(albert_dir, data, out, "MNLI", "--do_train", "--do_eval", "--do_predict")
    outcome = script(run_glue.main, *common)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("***** Eval results  *****") == 2
    for folder in (out, tmp_path / "out/MNLI-MM"):
        assert json.loads((folder / "eval_results.json").read_text())["examples"] == 9
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv"):
        assert len((out / name).read_text().splitlines()) == 5


def test_sts_b_is_regression(albert_dir, tmp_path, script):
    data, out = tmp_path / "STS-B", tmp_path / "out"
    for name in ("train", "dev", "test"):
        rows = [(i, sentence(i), sentence(i + 2), round(i * 0.45, 2)) for i in range(11)]
        header = "index\tsentence1\tsentence2\tscore"
        if name == "test":
            header, rows = "index\tsentence1\tsentence2", [row[:3] for row in rows]
        tsv(data / f"{name}.tsv", header, rows)
    common = flags(albert_dir, data, out, "STS-B", "--do_train", "--do_eval", "--do_predict")
    outcome = script(run_glue.main, *common)
    assert outcome.status == 0, outcome.err
    for name in ("corr", "pearson", "spearmanr"):
        assert re.search(rf"^{name} = -?[01]\.\d+", outcome.out, re.M)
    header = (out / "eval_results.txt").read_text().splitlines()[0]
    assert header.startswith(",exit_thres,pearson,compute_ratio,spearmanr,corr,")
    for line in (out / "STS-B.tsv").read_text().splitlines()[1:]:
        assert re.fullmatch(r"\d+\t[0-5]\.\d{3}", line)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_the_users_own_task_with_many_labels(albert_dir, tmp_path, script, suffix):
    rows = [{"sentence1": sentence(i), "label": f"class, {i % 11}"} for i in range(22)]
    path = tmp_path / f"mine.{suffix}"
    if suffix == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["sentence1", "label"])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    common = ["--model_type", "albert", "--model_name_or_path", albert_dir, "--output_dir", out]
    common += ["--max_seq_length", 20, "--num_train_epochs", 1]
    files = ["--train_file", path, "--validation_file", path]
    outcome = script(run_glue.main, *common, *files, "--do_train", "--do_eval")
    assert outcome.status == 0, outcome.err
    together = re.search(r"^acc = .*", outcome.out, re.M)[0]
    # Later, from the model's own labels.
    later = script(run_glue.main, *common, "--validation_file", path, "--do_eval")
    assert re.search(r"^acc = .*", later.out, re.M)[0] == together
    assert script(run_glue.main, *common, "--test_file", path, "--do_predict").status == 0
    lines = (out / "custom.tsv").read_text().splitlines()
    assert len(lines) == 23
    assert {line.split("\t")[1] for line in lines[1:]} <= {row["label"] for row in rows}


def test_checkpoints_are_evaluated_each(albert_dir, rte, tmp_path, script):
    out = tmp_path / "out"
    common = flags(albert_dir, rte, out, "RTE")
    more = ("--save_steps", 1, "--logging_steps", 1, "--evaluate_during_training")
    outcome = script(run_glue.main, *common, "--do_train", *more)
    assert outcome.status == 0, outcome.err
    logged = [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")]
    assert sum("loss" in entry for entry in logged) == 3
    curves = [e["eval_acc_per_layer"] for e in logged if "eval_acc_per_layer" in e]
    assert [len(curve) for curve in curves] == [4, 4, 4]
    assert {p.name for p in out.glob("checkpoint-*")} == {f"checkpoint-{i}" for i in (1, 2, 3)}
    assert list((out / "runs").iterdir())
    outcome = script(run_glue.main, *common, "--do_eval", "--eval_all_checkpoints")
    headings = re.findall(r"^\*+ Eval results (.*) \*+$", outcome.out, re.M)
    assert headings == ["checkpoint-1", "checkpoint-2", "checkpoint-3", ""]
    assert (out / "checkpoint-2/eval_results.json").exists()


def test_from_scratch_needs_no_weights(albert_dir, rte, tmp_path, script):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "spiece.model"):
        (bare / name).write_bytes((albert_dir / name).read_bytes())
    common = flags(bare, rte, tmp_path / "out", "RTE", "--do_train")
    outcome = script(run_glue.main, *common)
    assert outcome.status == 2
    assert "no weights" in outcome.err
    assert "--from_scratch" in outcome.err
    assert (
        script(run_glue.main, *common, "--from_scratch", "--set", "pooler_input=mean").status == 0
    )
    assert json.loads((tmp_path / "out/config.json").read_text())["pooler_input"] == "mean"


def test_a_bert_directory_trains_and_evaluates(rte, tmp_path, script):
    bert = tmp_path / "bert"
    sizes = {k: v for k, v in TINY.items() if k != "embedding_size"}
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(bert)
    words = sorted({word for i in range(40) for word in sentence(i).split()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (bert / "vocab.txt").write_text("\n".join(pieces) + "\n")
    outcome = script(
        run_glue.main, *flags(bert, rte, tmp_path / "out", "RTE", "--do_train", "--do_eval")
    )
    assert outcome.status == 0, outcome.err
    assert "Computation cost" in outcome.out
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["num_hidden_groups"] == 4


def test_empty_and_long_texts_work(albert_dir, tmp_path, script):
    data = tmp_path / "RTE"
    rows = [(0, "", "", "entailment"), (1, sentence(1, 90), sentence(2, 90), "not_entailment")]
    for name in ("train", "dev"):
        tsv(data / f"{name}.tsv", "index\tsentence1\tsentence2\tlabel", rows)
    common = flags(albert_dir, data, tmp_path / "out", "RTE", "--do_train", "--do_eval")
    outcome = script(run_glue.main, *common)
    assert outcome.status == 0, outcome.err


# Bad input: exit status 2, a message with the thing and the remedy, nothing overwritten.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task_name", "RTEE"], ["'RTEE'", "did you mean rte"]),
        (["--learning_rate", "-1"], ["--learning_rate", "-1"]),
        (["--learning_rate", "nan"], ["--learning_rate", "nan"]),
        (["--learning_rate", "fast"], ["--learning_rate", "fast"]),
        (["--per_gpu_train_batch_size", "0"], ["--per_gpu_train_batch_size", "0", "1 or more"]),
        (["--gradient_accumulation_steps", "0"], ["--gradient_accumulation_steps"]),
        (["--max_train_samples", "0"], ["--max_train_samples"]),
        (["--seed", "-1"], ["--seed"]),
        (["--max_seq_length", "41"], ["--max_seq_length 41", "max_position_embeddings = 40"]),
        (["--max_seq_length", "2"], ["--max_seq_length 2", "3"]),
        (["--set", "exit_thresh=1"], ["exit_thresh", "exit_thres"]),
        (["--set", "exit_thres=7"], ["exit_thres = 7", "0 to 1"]),
        (["--set", "cnt_thres=5"], ["cnt_thres = 5", "num_hidden_layers = 4"]),
        (["--fp16", "--bf16"], ["--fp16 and --bf16"]),
        (["--model_type", "gpt2"], ["--model_type", "albert"]),
        (["--tokenizer_name", "/nowhere/tok"], ["/nowhere/tok"]),
        (["--config_name", "/nowhere/config"], ["/nowhere/config"]),
        (["--model_name_or_path", "/nowhere/w"], ["/nowhere/w"]),
        (["--output_dir", "/proc/nowhere/out"], ["/proc/nowhere/out"]),
        (["--output_dir", "README.md"], ["README.md"]),
        (["--data_dir", "/nowhere/RTE"], ["train.tsv", "/nowhere/RTE", "download_glue_data.py"]),
    ],
)
def test_bad_flags_are_refused(albert_dir, rte, tmp_path, script, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("")
    common = flags(albert_dir, rte, tmp_path / "out", "RTE", "--do_train")
    refused(script, [*common, *arguments], *words)
    assert (tmp_path / "README.md").read_text() == ""
    assert not (tmp_path / "out").exists() or contents(tmp_path / "out") == {}


def test_nothing_to_do_is_said(albert_dir, rte, tmp_path, script):
    refused(script, flags(albert_dir, rte, tmp_path / "out"), "--do_train")


GOOD = "index\tsentence1\tsentence2\tlabel\n0\ta man\ta dog\tentailment\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["train.tsv is empty"]),
        ("index\tsentence1\tsentence2\tlabel\n", ["train.tsv has no examples"]),
        (GOOD + "1\ta man\n", ["train.tsv, line 3", "sentence2"]),
        (GOOD + "1\ta man\ta dog\tmaybe\n", ["line 3", "'maybe'", "entailment, not_entailment"]),
        (GOOD.replace("sentence2", "hypothesis"), ["line 1", "'sentence2'", "hypothesis"]),
    ],
)
def test_a_bad_data_file_is_named_with_its_line(albert_dir, tmp_path, script, content, words):
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE/train.tsv").write_text(content)
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text('{"mine": 1}')
    common = flags(albert_dir, tmp_path / "RTE", out, "RTE", "--do_train", "--overwrite_output_dir")
    refused(script, common, *words)
    assert contents(out) == {"config.json": b'{"mine": 1}'}


def test_an_output_dir_that_is_not_empty_is_kept(trained, albert_dir, rte, script):
    before = contents(trained)
    common = flags(albert_dir, rte, trained, "RTE", "--do_train")
    refused(script, common, trained, "--overwrite_output_dir")
    assert contents(trained) == before


def test_an_output_dir_that_cannot_be_written_is_named(
    trained, albert_dir, rte, script, monkeypatch
):
    before = contents(trained)
    monkeypatch.setattr(os, "access", lambda *_: False)
    for action in (("--do_train", "--overwrite_output_dir"), ("--do_eval",), ("--do_predict",)):
        refused(script, flags(albert_dir, rte, trained, "RTE", *action), trained, "written")
    assert contents(trained) == before


def test_a_full_disk_during_an_evaluation_keeps_the_old_results(trained, albert_dir, rte, script):
    common = flags(albert_dir, rte, trained, "RTE", "--do_eval")
    script(run_glue.main, *common)
    before = (trained / "eval_results.txt").read_bytes()
    with no_file_above(10):
        refused(script, common, "cannot write", "eval_results.txt")
    assert (trained / "eval_results.txt").read_bytes() == before


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"exit_thres": 1.2}, ["config.json", "exit_thres = 1.2", "0 to 1"]),
        ({"cnt_thres": 0}, ["config.json", "cnt_thres = 0"]),
        ({"cnt_thres": 5}, ["config.json", "cnt_thres = 5", "num_hidden_layers = 4"]),
        ({"thres_name": "bias_7"}, ["config.json", "bias_7", "patience"]),
        ({"intermediate_size": 64}, ["has shape", "config.json"]),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, ["has shape"]),
        ({"finetuning_task": "mrpc"}, ["trained on mrpc", "rte"]),
    ],
)
def test_a_bad_trained_config_is_refused(trained, albert_dir, rte, script, edit, words):
    edit_json(trained / "config.json", **edit)
    before = contents(trained)
    refused(script, flags(albert_dir, rte, trained, "RTE", "--do_eval"), *words)
    assert contents(trained) == before


def test_a_config_cut_in_half_is_named(trained, albert_dir, rte, script):
    path = trained / "config.json"
    path.write_text(path.read_text()[:200])
    refused(script, flags(albert_dir, rte, trained, "RTE", "--do_eval"), path, "not valid JSON")


def test_a_checkpoint_of_the_published_code_has_no_task_name(trained, albert_dir, rte, script):
    edit_json(trained / "config.json", finetuning_task=None)
    assert script(run_glue.main, *flags(albert_dir, rte, trained, "RTE", "--do_eval")).status == 0


def test_training_may_start_from_another_tasks_model(trained, rte, tmp_path, script):
    """Intermediate-task training: the encoder comes along, the exits' classifiers do not."""
    folder = tmp_path / "STS-B"
    rows = [(i, sentence(i), sentence(i + 1), i % 5) for i in range(12)]
    for name in ("train", "dev"):
        tsv(folder / f"{name}.tsv", "index\tsentence1\tsentence2\tscore", rows)
    out = tmp_path / "next"
    common = flags(trained, folder, out, "STS-B", "--do_train", "--learning_rate", 0)
    done = script(run_glue.main, *common, "--max_steps", 1)
    assert done.status == 0, done.err
    before, after = (load_file(path / "model.safetensors") for path in (trained, out))
    assert after["albert.encoder.exit_out_layer.classifier.weight"].shape[0] == 1
    kept = [name for name in before if "exit" not in name]
    assert kept
    assert all(torch.equal(before[name], after[name]) for name in kept)


@pytest.mark.parametrize("kind", ["albert", "ponder_albert", "albert_act"])
def test_regression_heads_start_at_the_mean_score_once(kind, albert_dir, tmp_path, script):
    folder = tmp_path / "STS-B"
    rows = [(i, sentence(i), sentence(i + 1), i % 4) for i in range(12)]
    for name in ("train", "dev"):
        tsv(folder / f"{name}.tsv", "index\tsentence1\tsentence2\tscore", rows)

    def biases(source, out, rate) -> list[float]:
        common = flags(source, folder, out, "STS-B", "--do_train", "--max_steps", 2)
        common += ["--learning_rate", rate, "--model_type", kind]
        assert script(run_glue.main, *common).status == 0
        tensors = load_file(out / "model.safetensors")
        return [t.item() for name, t in tensors.items() if "classifier" in name and t.shape == (1,)]

    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert biases(albert_dir, first, 0) == [1.5]
    trained = biases(albert_dir, second, 1e-2)
    assert trained != [1.5]
    assert biases(second, third, 0) == trained


def test_untrained_weights_are_not_evaluated(albert_dir, rte, script):
    """A plain ALBERT has no exits; random ones would print numbers that mean nothing."""
    before = contents(albert_dir)
    common = flags(albert_dir, rte, albert_dir, "RTE", "--do_eval")
    refused(script, common, albert_dir, "not a trained model", "--do_train")
    assert contents(albert_dir) == before


def test_an_evaluation_checks_the_length_too(trained, albert_dir, rte, script):
    common = flags(albert_dir, rte, trained, "RTE", "--do_eval", "--max_seq_length", 500)
    refused(script, common, "--max_seq_length 500", "max_position_embeddings = 40")


def test_no_trained_model_says_what_to_run(albert_dir, rte, tmp_path, script):
    refused(script, flags(albert_dir, rte, tmp_path, "RTE", "--do_eval"), tmp_path, "--do_train")


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(
    albert_dir, rte, tmp_path, script, monkeypatch
):
    """The third step's loss is NaN."""
    forward, calls = ElbertForSequenceClassification.forward, []

    def spoilt(self, *arguments, **keywords):
        out = forward(self, *arguments, **keywords)
        calls.append(1)
        if len(calls) == 3:
            out.loss = out.loss * float("nan")
        return out

    monkeypatch.setattr(ElbertForSequenceClassification, "forward", spoilt)
    out = tmp_path / "out"
    common = flags(albert_dir, rte, out, "RTE")
    train = [*common, "--do_train", "--save_steps", 1]
    refused(script, train, "the loss is nan at step 3", "learning rate 1e-05", out / "checkpoint-2")
    monkeypatch.setattr(ElbertForSequenceClassification, "forward", forward)
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
    assert not (out / "config.json").exists()
    refused(script, [*common, "--do_eval"], "did not finish", "checkpoint-2")
    kept = flags(albert_dir, rte, out / "checkpoint-2", "RTE", "--do_eval")
    assert script(run_glue.main, *kept).status == 0


def test_a_label_count_that_does_not_match_is_refused(
    trained, albert_dir, rte, script, monkeypatch
):
    whole = results.predictions_of
    monkeypatch.setattr(results, "predictions_of", lambda logits: whole(logits)[:-1])
    refused(
        script,
        flags(albert_dir, rte, trained, "RTE", "--do_predict"),
        "4 predictions for 5 examples",
        "not written",
    )
    assert not (trained / "RTE.tsv").exists()


def test_a_finished_model_is_marked_so(trained):
    assert not (trained / checkpointing.IN_PROGRESS).exists()
    checkpointing.check_finished(trained)
