"""run_glue.py from its flags to its files: the published loop, every kind of task, the best model,
and what a run says and leaves behind."""

import csv
import json
import re
import shutil
import sys
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
import yaml
from accelerate.tracking import GeneralTracker
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, XLMRobertaTokenizer, pipeline

import elbert
import export_onnx
import run_glue
import sweep_exits
from elbert import Classifier, load_pretrained, load_tokenizer
from evaluation.modes import MODES
from glue.splits import read_examples
from glue.tasks import get_task
from modeling.cpu_packing import EMULATED, is_emulated
from modeling.files import weights_hash
from modeling.keys import warn_of_few_layers
from runs import settings, trackers
from tests.berts import save, tiny_encoder
from tests.commands import ROOT, edit_key, ran, report_of, scalars
from tests.conftest import PAIRS, RTE_LABELS, edit_json, sentence, slow, tsv, write_sts_b
from tests.forks import assert_same_weights
from tests.general_encoders import save_with_tokenizer, tiny_classifier

LABELS = ("contradiction", "entailment", "neutral")


@pytest.mark.pictures
def test_evaluation_writes_its_reports(trained, glue):
    outcome = glue(trained, "--do_eval", "--out_mode", "one").done()
    report = report_of(trained)
    cost, heading, metric = outcome.out[outcome.out.index("Computation cost") :].splitlines()[:3]
    assert cost == f"Computation cost: {report['computation_cost']:.4f}"
    assert heading == "***** Eval results  *****"
    assert metric == f"acc = {report['metrics']['acc']}"
    assert report["examples"] == sum(report["exits_per_layer"]) == 10
    assert {"latency_ms", "flops_ratio", "rule", "environment", "average_layer"} <= set(report)
    glue(trained, "--do_eval", "--out_mode", "all")
    rows = list(csv.reader((trained / "eval_results.txt").open()))
    assert [row[1] for row in rows] == ["exit_thres", "0.10", "0.10"]
    assert rows[1] == rows[2]
    statistics = trained / "stat_out/elbert/rte"
    assert {path.name for path in statistics.iterdir()} == {"layers_all.csv", "layers_exit.csv"}
    assert len(scalars(trained)["step_loss"]) == 3  # all steps of a short training
    layer_rows = list(csv.DictReader((statistics / "layers_all.csv").open()))
    assert [float(row["accuracy"]) for row in layer_rows] == pytest.approx(
        report["acc_per_layer"], abs=1e-6
    )
    assert (trained / "exits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "auto"])
def test_half_precision_says_how_many_exits_are_those_of_fp32(trained, glue, dtype):
    edit_json(trained / "config.json", exit_thres=0.99, thres_name="entropy")
    glue(trained, "--do_eval").done()
    expected = report_of(trained)
    assert (expected["dtype"], expected["same_exit_layer_as_fp32"]) == ("fp32", 1.0)
    outcome = glue(trained, "--do_eval", "--dtype", dtype).done()
    report = report_of(trained)
    share_same = report["same_exit_layer_as_fp32"]
    best = "fp32" if is_emulated(torch.bfloat16, "cpu") else "bf16"
    assert report["dtype"] == (best if dtype == "auto" else dtype)
    if report["dtype"] != "fp32":
        assert f"same exit layer as in float32 = {share_same:.4f}" in outcome.out
    pairs = zip(report["exits_per_layer"], expected["exits_per_layer"], strict=True)
    moved = sum(abs(a - b) for a, b in pairs) / 2
    assert moved <= round(10 * (1 - share_same)) <= 2  # of 10 examples


@pytest.mark.parametrize("mode", ["elbert", "ponder_albert", "albert_act"])
def test_mixed_precision_trains_float32_weights(mode, glue, tmp_path, caplog):
    cheap = ("--bf16", "--gradient_accumulation_steps", 2)
    glue(tmp_path, "--model_type", mode, "--do_train", *cheap).done()
    assert (f"--bf16: {EMULATED}" in caplog.text) == is_emulated(torch.bfloat16, "cpu")
    weights = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


@pytest.mark.parametrize("mode", ["elbert", "ponder_albert", "albert_act"])
def test_gradient_checkpointing_keeps_fewer_bytes_and_trains_the_same_weights(
    mode, glue, tmp_path, monkeypatch
):
    kept = []  # bytes for the gradients, after each forward

    def counted(model, *arguments, **inputs):
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: sizes.update({tensor.data_ptr(): tensor.nbytes}) or tensor,
            lambda tensor: tensor,
        ):
            output = forward(model, *arguments, **inputs)
        kept.append(sum(sizes.values()))
        return output

    model_class = MODES[mode].model_class
    forward = model_class.forward
    monkeypatch.setattr(model_class, "forward", counted)
    flags = ("--model_type", mode, "--do_train", "--max_steps", 2)
    glue(tmp_path / "plain", *flags).done()
    glue(tmp_path / "checkpointed", *flags, "--gradient_checkpointing").done()
    assert_same_weights(tmp_path / "plain", tmp_path / "checkpointed")
    assert len(kept) == 4
    assert max(kept[2:]) < 0.7 * min(kept[:2])


@pytest.mark.slow
def test_torch_compile_trains_the_same_weights(glue, tmp_path):
    flags = ("--do_train", "--max_steps", 2)
    glue(tmp_path / "plain", *flags).done()
    compiled = ("--torch_compile", "--torch_compile_backend", "eager", "--do_eval")
    glue(tmp_path / "compiled", *flags, *compiled).done()
    torch.testing.assert_close(
        load_file(tmp_path / "compiled/model.safetensors"),
        load_file(tmp_path / "plain/model.safetensors"),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED"])
def test_an_accelerate_configuration_that_spreads_a_model_is_refused(name, glue, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"ACCELERATE_USE_{name}", "true")
        glue(tmp_path / "out", "--do_train").refused(f"ACCELERATE_USE_{name}", "torchrun")
    assert not (tmp_path / "out").exists()


def test_prediction_writes_the_official_file_and_the_details(trained, glue, rte):
    glue(trained, "--do_eval", "--do_predict").done()
    official = (trained / "RTE.tsv").read_text().splitlines()
    assert official[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in official[1:]] == list("01234")
    details = list(csv.DictReader((trained / "predictions.tsv").open(), delimiter="\t"))
    columns = "index label prediction confidence exit_layer".split()
    classes = [f"probability of {name}" for name in ("entailment", "not_entailment")]
    assert list(details[0]) == [*columns, *classes, "sentence1", "sentence2"]
    for line, row in zip(official[1:], details, strict=True):
        assert line.split("\t")[1] == row["prediction"]
        assert row["prediction"] in ("entailment", "not_entailment")
        assert 0.5 <= float(row["confidence"]) <= 1
        assert 1 <= int(row["exit_layer"]) <= 4
    # All results say where they come from.
    provenance = report_of(trained)["provenance"]
    assert provenance["weights"] == sha256((trained / "model.safetensors").read_bytes()).hexdigest()
    assert provenance["flags"]["data_dir"] == str(rte)
    assert "--do_eval --do_predict" in provenance["command"]
    assert provenance["versions"]["torch"] == torch.__version__
    answered = json.loads((trained / "predictions.json").read_text())["provenance"]
    assert answered["weights"] == provenance["weights"]
    assert answered["data"] != provenance["data"]
    trained_by = json.loads((trained / "training.json").read_text())
    assert (trained_by["steps"], trained_by["provenance"]["flags"]["do_train"]) == (3, True)


@pytest.mark.pictures
def test_mnli_evaluates_and_predicts_both_halves(glue, tmp_path):
    data, out = tmp_path / "MNLI", tmp_path / "out/MNLI"
    rows = [(i, sentence(i), sentence(i + 2), LABELS[i % 3]) for i in range(9)]
    for name in ("train", "dev_matched", "dev_mismatched"):
        tsv(data / f"{name}.tsv", f"{PAIRS}\tgold_label", rows)
    for name in ("test_matched", "test_mismatched"):
        tsv(data / f"{name}.tsv", PAIRS, [row[:3] for row in rows[:4]])
    actions = ("--do_train", "--do_eval", "--do_predict")
    outcome = glue(out, *actions, data=data, task="MNLI").done()
    assert outcome.out.count("***** Eval results  *****") == 2
    for folder in (out, tmp_path / "out/MNLI-MM"):
        assert report_of(folder)["examples"] == 9
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv"):
        assert len((out / name).read_text().splitlines()) == 5


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("mode", "before", "after"),
    [
        ("elbert", "exit_thres,", ",thres_name,cnt_thres,margin,range_tmp"),
        ("ponder_albert", "exit_thres,", ",exit_criteria"),
        ("albert_act", "", ",act_epsilon"),
    ],
)
def test_sts_b_is_regression(glue, tmp_path, mode, before, after):
    actions = ("--do_train", "--do_eval", "--do_predict", "--model_type", mode)
    data, out = write_sts_b(tmp_path / "STS-B"), tmp_path / "out"
    outcome = glue(out, *actions, data=data, task="STS-B").done()
    for name in ("corr", "pearson", "spearmanr"):
        assert re.search(rf"^{name} = -?[01]\.\d+", outcome.out, re.M)
    header = (out / "eval_results.txt").read_text().splitlines()[0]
    assert header == f",{before}pearson,compute_ratio,spearmanr,corr{after}"
    for line in (out / "STS-B.tsv").read_text().splitlines()[1:]:
        assert re.fullmatch(r"\d+\t[0-5]\.\d{3}", line)


@pytest.mark.parametrize("mode", ["elbert", "ponder_albert", "albert_act"])
def test_the_users_own_task_with_many_labels(albert_dir, tmp_path, script, mode):
    rows = [{"sentence1": sentence(i), "label": f"class, {i % 11}"} for i in range(22)]
    path, out = tmp_path / "mine.jsonl", tmp_path / "out"
    path.write_text("\n".join(map(json.dumps, rows)))
    common = ["--model_type", mode, "--model_name_or_path", albert_dir, "--output_dir", out]
    common += ["--max_seq_length", 20, "--num_train_epochs", 1]
    files = ["--train_file", path, "--validation_file", path]
    uneven = ("--metric_name", "f1_macro", "--evaluate_during_training", "--logging_steps", 1)
    outcome = script(run_glue.main, *common, *files, *uneven, "--do_train", "--do_eval").done()
    together, metrics = re.search(r"^acc = .*", outcome.out, re.M)[0], report_of(out)["metrics"]
    assert metrics["f1_macro"] == pytest.approx(report_of(out)["macro_f1"])
    assert '"eval_f1_macro' in outcome.out
    # Later, from the model's own labels.
    later = script(run_glue.main, "--output_dir", out, "--do_eval").done()
    assert re.search(r"^acc = .*", later.out, re.M)[0] == together
    assert report_of(out)["metrics"] == metrics
    other = ("--metric_name", "acc", "--out_mode", "one")
    script(run_glue.main, "--output_dir", out, "--do_eval", *other).done()
    assert report_of(out)["metrics"] == {"acc": metrics["acc"]}
    script(run_glue.main, *common, "--test_file", path, "--do_predict").done()
    lines = (out / "custom.tsv").read_text().splitlines()
    assert len(lines) == 23
    assert {line.split("\t")[1] for line in lines[1:]} <= {row["label"] for row in rows}
    details = list(csv.DictReader((out / "predictions.tsv").open(), delimiter="\t"))
    assert [(row["label"], row["sentence1"]) for row in details] == [
        (row["label"], row["sentence1"]) for row in rows
    ]
    for row in details:
        chances = {
            name: float(row[f"probability of {name}"]) for name in {r["label"] for r in rows}
        }
        assert float(row["confidence"]) == max(chances.values())
        assert chances[row["prediction"]] == max(chances.values())


def test_a_checkpoint_is_evaluated_as_it_was_in_training(glue, script, tmp_path):
    out = tmp_path / "out"
    saving = ("--save_steps", 1, "--logging_steps", 1, "--evaluate_during_training")
    outcome = glue(out, "--do_train", *saving).done()
    logged = [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")]
    assert sum("loss" in entry for entry in logged) == 3
    curves = [e["eval_acc_per_layer"] for e in logged if "eval_acc_per_layer" in e]
    assert [len(curve) for curve in curves] == [4, 4, 4]
    assert {p.name for p in out.glob("checkpoint-*")} == {f"checkpoint-{i}" for i in (1, 2, 3)}
    assert list((out / "runs").iterdir())
    # Its folder is all that an evaluation, a sweep and Python need.
    checkpoint = out / "checkpoint-2"
    told = script(run_glue.main, "--do_eval", "--output_dir", checkpoint).done().out
    assert f"{checkpoint}/training_state.json: flags from the training: " in told
    assert report_of(checkpoint)["acc_per_layer"] == pytest.approx(curves[1])
    script(sweep_exits.main, "--model_dir", checkpoint, "--tables_only").done()
    classify = Classifier(checkpoint)
    assert classify.max_length == 32
    assert classify.tokenizer.tokenize("A MAN") == classify.tokenizer.tokenize("a man")
    # All of them, in one table.
    everything = ("--do_eval", "--eval_all_checkpoints", "--output_dir", out)
    table = script(run_glue.main, *everything).done().out.partition("| model |")[2]
    rows = list(csv.DictReader((out / "checkpoints.csv").open()))
    assert [float(row["acc"]) for row in rows[:3]] == pytest.approx(
        [curve[-1] for curve in curves], abs=1e-4
    )
    assert [row["model"] for row in rows] == [
        *(f"checkpoint-{i}" for i in (1, 2, 3)),
        "trained model",
    ]
    assert all(f"| {row['model']} | {row['acc']} |" in table for row in rows)
    script(run_glue.main, *everything[1:]).refused("--do_eval")
    # The published way to resume, which here would overwrite the checkpoint that it starts from.
    ended = glue(out, "--do_train", "--overwrite_output_dir", weights=checkpoint)
    ended.refused("holds the starting model", f"--resume_from_checkpoint {checkpoint}")
    assert checkpoint.exists()


def test_from_scratch_needs_no_weights_and_no_epochs_train_none(albert_dir, glue, tmp_path):
    bare, out = tmp_path / "bare", tmp_path / "out"
    bare.mkdir()
    for name in ("config.json", "spiece.model"):
        (bare / name).write_bytes((albert_dir / name).read_bytes())
    glue(out, "--do_train", weights=bare).refused("no weights", "--from_scratch")
    columns = ("--do_train", "--text_column_names", "sentence2")
    glue(out, *columns).refused("--text_column_names is of your own files")
    scratch = ("--from_scratch", "--set", "pooler_input=mean")
    glue(out, "--do_train", *scratch, weights=bare).done()
    assert json.loads((out / "config.json").read_text())["pooler_input"] == "mean"
    glue(tmp_path / "still", "--do_train", "--num_train_epochs", 0).done()
    before = load_file(albert_dir / "model.safetensors")
    after = load_file(tmp_path / "still/model.safetensors")
    assert all(torch.equal(after[f"albert.{name}"], before[name]) for name in before)


@pytest.mark.parametrize("kind", ["elbert", "ponder_albert", "albert_act"])
def test_regression_heads_start_at_the_mean_score_once(kind, albert_dir, tmp_path, glue):
    data = write_sts_b(tmp_path / "STS-B")  # scores from 0 to 4.5

    def biases(source, out, rate) -> list[float]:
        two_steps = ("--do_train", "--max_steps", 2, "--learning_rate", rate, "--model_type", kind)
        glue(out, *two_steps, weights=source, data=data, task="STS-B").done()
        tensors = load_file(out / "model.safetensors")
        return [t.item() for name, t in tensors.items() if "classifier" in name and t.shape == (1,)]

    assert biases(albert_dir, tmp_path / "first", 0) == pytest.approx([2.25])
    trained = biases(albert_dir, tmp_path / "second", 1e-2)
    assert trained != pytest.approx([2.25])
    assert biases(tmp_path / "second", tmp_path / "third", 0) == trained


def test_training_anew_removes_what_the_old_weights_gave(trained, glue, caplog):
    glue(trained, "--do_eval", "--do_predict").done()
    (trained / "exit_config.json").write_text('{"exit_thres": 0.123}')
    glue(trained, "--do_train", "--overwrite_output_dir").done()
    names = {path.name for path in trained.rglob("*") if path.is_file()}
    derived = {"eval_results.json", "eval_results.txt", "exits.png", "predictions.tsv", "RTE.tsv"}
    assert not names & (derived | {"layers_all.csv", "exit_config.json"})
    assert "chosen for the weights before: it is now" in caplog.text
    assert json.loads((trained / "exit_config.json.1").read_text()) == {"exit_thres": 0.123}


@pytest.mark.parametrize("is_named", [False, slow(True)])
def test_an_exit_config_of_other_weights_is_warned_of(is_named, trained, script, caplog):
    """By every door: an evaluation, a sweep and `Classifier`."""
    name = "picked.json" if is_named else "exit_config.json"
    if is_named:
        edit_json(trained / "config.json", exit_config_path=name)
    doors = {
        "evaluation": ("--do_eval", "--skip_full_depth", "--output_dir", trained),
        "sweep": ("--tables_only", "--rules", "entropy", "--model_dir", trained),
        "classifier": (),
    }
    for weights, count in ((weights_hash(trained), 0), ("0" * 64, 1)):
        content = {"exit_thres": 0.2, "provenance": {"weights": weights}}
        (trained / name).write_text(json.dumps(content))
        for door, command in doors.items():
            caplog.clear()
            if command:
                main = run_glue.main if door == "evaluation" else sweep_exits.main
                script(main, *command, "--no_cuda").done()
            else:
                Classifier(trained)
            assert caplog.text.count("was chosen for other weights") == count, door


def test_the_best_model_is_kept_and_training_stops_when_no_better_comes(glue, tmp_path):
    out = tmp_path / "out"
    training = ("--logging_steps", 1, "--num_train_epochs", 9, "--learning_rate", 1e-3)
    best = ("--load_best_model_at_end", "--early_stopping_patience", 2)
    outcome = glue(out, "--do_train", "--do_eval", *training, *best).done()
    logged = [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")]
    curve = [entry["eval_acc_per_layer"][-1] for entry in logged if "eval_acc_per_layer" in entry]
    written = json.loads((out / "training.json").read_text())
    assert written["best"] == {"step": 1 + curve.index(max(curve)), "value": max(curve), "since": 2}
    assert written["steps"] == len(curve) == written["best"]["step"] + 2
    assert report_of(out)["acc_per_layer"][-1] == max(curve)
    assert not (out / "best").exists()


def test_an_evaluation_may_leave_out_the_pass_over_all_layers(trained, glue):
    whole = glue(trained, "--do_eval").done().out
    assert str(trained / "exits.png") in whole.partition("written:")[2]
    first = report_of(trained)
    quick = glue(trained, "--do_eval", "--skip_full_depth").done().out
    second = report_of(trained)
    assert second["exits_per_layer"] == first["exits_per_layer"]
    assert second["metrics"] == first["metrics"]
    missing = first.keys() - second.keys()
    of_a_recording = "acc_per_layer frontier same_exit_layer_as_fp32 same_answer_as_fp32"
    assert missing == set(of_a_recording.split())
    assert not (trained / "exits.png").exists()
    assert "one text at a time" in quick
    assert "texts/s" in quick


@pytest.mark.parametrize("mode", ["elbert", slow("ponder_albert"), "albert_act"])
def test_a_models_folder_is_all_that_its_evaluation_needs(mode, glue, script, rte, tmp_path):
    out, work = tmp_path / "out", ("--do_eval", "--do_predict")
    glue(out, "--do_train", *work, "--model_type", mode).done()
    expected = report_of(out)["metrics"], (out / "RTE.tsv").read_text()
    for flag in ("--output_dir", "--model_name_or_path"):
        (out / "RTE.tsv").unlink()
        first_line = script(run_glue.main, flag, out, *work).done().out.partition("\n")[0]
        for flag_taken in (
            f"data_dir={rte}",
            "do_lower_case",
            "max_seq_length=32",
            "task_name=RTE",
        ):
            assert f" --{flag_taken}" in first_line
        assert (report_of(out)["metrics"], (out / "RTE.tsv").read_text()) == expected
    elsewhere = ("--model_name_or_path", out, "--output_dir", tmp_path / "new")
    script(run_glue.main, *elsewhere, *work).refused(f"give --output_dir {out}")
    assert Classifier(out).max_length == 32
    (out / "training.json").unlink()
    script(run_glue.main, "--output_dir", out, *work).refused("--model_type")
    glue(out, *work, "--model_type", mode).done()
    assert (report_of(out)["metrics"], (out / "RTE.tsv").read_text()) == expected


def test_a_flag_overrides_the_trainings_and_says_so(trained, glue, script):
    assert "training.json" not in glue(trained, "--do_eval").done().out
    shorter = ("--do_eval", "--max_seq_length", 12)
    done = script(run_glue.main, "--output_dir", trained, *shorter).done()
    assert "--max_seq_length was 32 in the training, is 12 now" in done.out


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("roberta", "ForMaskedLM"),
        ("electra", "ForPreTraining"),
        ("mpnet", "Model"),
        slow("bert", "Model"),
    ],
)
def test_an_encoder_of_a_family_trains_and_evaluates(family, head, glue, tmp_path):
    """With the published --model_type, its own tokenizer, and texts of all 40 positions."""
    weights, out = save(tiny_encoder(family, head), tmp_path / family), tmp_path / "out"
    run = partial(glue, weights=weights)
    family_flags = ("--model_type", family, "--max_seq_length", 40)
    training = (*family_flags, "--do_train", "--learning_rate", 1e-3)
    run(out, *training).done()
    hf, pair = AutoTokenizer.from_pretrained(weights), ("a man runs", "the park is red")
    assert load_tokenizer(out)(*pair).input_ids == hf(*pair).input_ids
    exits = []
    for size in (1, 4):
        evaluation = ("--per_gpu_eval_batch_size", size, "--set", "exit_thres=0.9", "cnt_thres=3")
        run(out, *family_flags, "--do_eval", *evaluation).done()
        exits.append(report_of(out)["exits_per_layer"])
    assert exits[0] == exits[1]


def test_an_encoder_with_transformers_own_layers_trains_and_evaluates(glue, tmp_path):
    """ModernBERT: alone and in batches the same exits."""
    out = tmp_path / "out"
    weights = save_with_tokenizer(tiny_classifier("modernbert"), tmp_path / "modernbert")
    run = partial(glue, weights=weights)
    recipe = ("--model_type", "elbert", "--recipe", "recommended", "--max_seq_length", 40)
    run(out, *recipe, "--do_train", "--learning_rate", 1e-3).done()
    exits = []
    for size in (1, 4):
        evaluation = ("--per_gpu_eval_batch_size", size, "--set", "exit_thres=0.9")
        run(out, "--model_type", "elbert", "--do_eval", *evaluation).done()
        exits.append(report_of(out)["exits_per_layer"])
    assert exits[0] == exits[1]
    assert len(elbert.classify(str(out), [("a man runs", "the park is red")])) == 1


# What users of the published code are used to type.


def test_a_published_config_trains_and_the_published_code_can_read_the_weights(
    glue, albert_dir, tmp_path, caplog
):
    """Its PyTorch wrote pickles, not zip files; the tokenizer is the SentencePiece model."""
    config, out = Path(shutil.copy(albert_dir / "config.json", tmp_path)), tmp_path / "RTE"
    edit_json(config, kd_enable=True, use_label_smooth=False)
    saving = ("--max_steps", 1, "--save_format", "pytorch", "--config_name", config)
    glue(out, "--do_train", *saving).done()
    assert f"{config}: kd_enable = true has no effect: no distillation here" in caplog.text
    assert "use_label_smooth" not in caplog.text
    assert (out / "pytorch_model.bin").read_bytes()[:2] != b"PK"
    weights = torch.load(out / "pytorch_model.bin", weights_only=True)
    torch.testing.assert_close(weights, dict(load_pretrained(out)[0].state_dict()), rtol=0, atol=0)
    assert (out / "spiece.model").read_bytes() == (albert_dir / "spiece.model").read_bytes()
    (out / "spiece.model").unlink()
    without = ("--do_train", "--save_format", "pytorch")
    glue(tmp_path / "new", *without, weights=out).refused("no spiece.model", "--tokenizer_name")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "layers", "edited"),
    [
        ("elbert", 12, {"exit_thres": 0.4, "cnt_thres": 8}),
        ("elbert", 6, {"exit_thres": 0.4, "cnt_thres": 6}),
        ("ponder_albert", 12, {"exit_criteria": "threshold", "exit_thres": 0.5}),
        ("albert_act", 12, {}),
    ],
)
def test_glue_run_trains_edits_and_evaluates_every_mode(mode, layers, edited, tmp_path):
    for name in ("config.json", "spiece.model"):
        shutil.copy(ROOT / "configs/sample" / name, tmp_path)
    edit_json(tmp_path / "config.json", num_hidden_layers=layers, cnt_thres=1)
    (tmp_path / "data/RTE").mkdir(parents=True)
    for name in ("train", "dev"):  # fewer rows, which take less time
        lines = (ROOT / f"configs/sample/RTE/{name}.tsv").read_text().splitlines()[:61]
        (tmp_path / f"data/RTE/{name}.tsv").write_text("\n".join([*lines, ""]))
    short_training = "--from_scratch --max_steps 3 --max_train_samples 40 --save_format pytorch"
    where = {
        "PYTHON": sys.executable,
        "GLUE_DIR": tmp_path / "data",
        "W_DIR": tmp_path,
        "OUT_DIR": tmp_path,
        "TRAIN_FLAGS": short_training,
    }
    ran("bash", "glue_run.sh", 1, MODEL_TYPE=mode, OMP_NUM_THREADS=1, **where)
    config = json.loads((tmp_path / "RTE/config.json").read_text())
    assert {key: config[key] for key in edited} == edited
    assert 0 < report_of(tmp_path / "RTE")["computation_cost"] <= 1
    if layers == 6:  # what --pick wrote stays, unless a variable sets another value
        (tmp_path / "RTE/exit_config.json").write_text('{"exit_thres": 0.9, "provenance": {}}')
        for variables, threshold in (({}, 0.9), ({"V": 0.3}, 0.3)):
            ran("bash", "glue_run.sh", 0, OMP_NUM_THREADS=1, **where, **variables)
            assert report_of(tmp_path / "RTE")["rule"]["exit_thres"] == threshold
        all_values = {"TEST_MODE": "all", "KEY": "cnt_thres"}
        ran("bash", "glue_run.sh", 0, OMP_NUM_THREADS=1, **where, **all_values)
        rows = csv.DictReader((tmp_path / "RTE/eval_results.txt").open())
        assert [row["cnt_thres"] for row in rows] == ["2", "3", "4", "5", "6"]


def test_groups_say_who_pays_for_early_exit(trained, glue, tmp_path, rte):
    """Against the answers of each example in predictions.tsv and at full depth."""
    data = Path(shutil.copytree(rte, tmp_path / "data"))
    header, *rows = (rte / "dev.tsv").read_text().splitlines()
    lines = [f"{row}\t{'long' if i % 3 else 'short'}" for i, row in enumerate(rows)]
    (data / "dev.tsv").write_text("\n".join([f"{header}\tkind", *lines]) + "\n")
    keys = ("--set", "thres_name=entropy", "exit_thres=1", "--group_column")
    printed = glue(trained, "--do_eval", *keys, "kind", data=data).done().out
    assert "loses more than the others" in printed or "no group is shown to lose more" in printed
    table = {row["group"]: row for row in csv.DictReader((trained / "groups.csv").open())}
    groups = np.array(["long" if i % 3 else "short" for i in range(len(rows))])
    metrics = {}
    for name, thres in (("acc", "1"), ("acc_full_depth", "0")):
        for group in table:
            chosen = [line for line, of in zip(lines, groups, strict=True) if of == group]
            part = tmp_path / name / group
            part.mkdir(parents=True)
            (part / "dev.tsv").write_text("\n".join([f"{header}\tkind", *chosen]) + "\n")
            flags = ("--set", "thres_name=entropy", f"exit_thres={thres}", "--skip_full_depth")
            glue(trained, "--do_eval", *flags, data=part).done()
            metrics[group, name] = report_of(trained)["metrics"]["acc"]
    for group, row in table.items():
        for name in ("acc", "acc_full_depth"):
            assert float(row[name]) == pytest.approx(metrics[group, name])
        drop = metrics[group, "acc_full_depth"] - metrics[group, "acc"]
        assert float(row["drop"]) == pytest.approx(drop)
        assert float(row["drop_low"]) <= drop <= float(row["drop_high"])
        assert int(row["exits_1"]) == int(row["examples"]) == (groups == group).sum()
        assert float(row["computation_cost"]) == 1 / 4
    glue(trained, "--do_eval", *keys, "nothing", data=data).refused("no column 'nothing'", "kind")
    glue(trained, "--do_predict", *keys, "kind").refused("--group_column", "--do_eval")
    # Before a training, not after it.
    new = tmp_path / "new"
    glue(new, "--do_train", "--do_eval", *keys, "nothing").refused("no column 'nothing'")
    assert not (new / "config.json").exists()
    glue(trained, "--do_eval", *keys, "kind", "--skip_full_depth").refused("--skip_full_depth")


def test_the_published_window_means_all_layers_where_a_model_has_fewer(
    albert_dir, glue, script, tmp_path, caplog
):
    """Published config.json and script have cnt_thres 8, also for fewer layers."""
    weights, out = Path(shutil.copytree(albert_dir, tmp_path / "w")), tmp_path / "out/RTE"
    edit_json(weights / "config.json", cnt_thres=8.0)
    warn_of_few_layers.cache_clear()
    glue(out, "--do_train", "--max_steps", 1, weights=weights).done()
    assert caplog.text.count("cnt_thres = 8: the model has 4 layers") == 1
    edit_json(out / "config.json", cnt_thres=8.0)
    assert "cnt_thres = 4 (config.json)" in glue(out, "--do_eval").done().out
    by_entropy = glue(out, "--do_eval", "--set", "thres_name=entropy").done().out
    # What this rule reads, and no idle key.
    assert "rule: thres_name = entropy (--set), exit_thres = 0.1 (config.json)" in by_entropy
    assert "cnt_thres" not in by_entropy
    assert "cnt_thres 8.0 -> 4" in edit_key(script, out, "cnt_thres", 8).done().out
    edit_json(weights / "config.json", cnt_thres=9)
    glue(tmp_path / "b", "--do_train", weights=weights).refused("cnt_thres = 9: allowed is 1 to")


def test_the_published_loop_begins_a_table_at_its_first_threshold(trained, glue):
    """As published, --out_mode all begins eval_results.txt at exit_thres 0.9; nothing is lost."""
    for value in (0.4, 0.9, 0.8):
        glue(trained, "--do_eval", "--out_mode", "all", "--set", f"exit_thres={value}").done()
    rows = csv.DictReader((trained / "eval_results.txt").open())
    assert [row["exit_thres"] for row in rows] == ["0.90", "0.80"]
    rows = csv.DictReader((trained / "eval_results.txt.1").open())
    assert [row["exit_thres"] for row in rows] == ["0.40"]


@pytest.mark.parametrize(
    ("named", "content"),
    [
        ("w/exit_config.json", '{"margin": 0.4}'),
        ("w/exit_config.json", ""),
        slow("w", ""),
        slow("elsewhere/keys.json", '{"margin": 0.4}'),
        ("elsewhere/keys.json", ""),
        slow("exit_config.json", '{"margin": 0.4}'),  # beside the weights
    ],
)
def test_the_named_exit_config_is_edited_between_training_and_evaluation(
    named, content, albert_dir, glue, script, tmp_path
):
    """As published: by each command, where it lies, blank or not while the training ran."""
    weights, out = Path(shutil.copytree(albert_dir, tmp_path / "w")), tmp_path / "out/RTE"
    is_relative = "/" not in named and named != "w"
    file = weights / named if is_relative else tmp_path / named
    if file.suffix != ".json":
        file = file / "exit_config.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    edit_json(
        weights / "config.json",
        exit_config_path=named if is_relative else str(tmp_path / named),
        margin=0.1,
    )
    glue(out, "--do_train", "--max_steps", 1, "--save_steps", 1, weights=weights).done()
    assert not (out / "exit_config.json").exists()
    assert json.loads((out / "config.json").read_text())["margin"] == 0.1

    file.write_text('{"margin": 0.3, "exit_thres": 0.2}')
    rule = f"margin = 0.3 ({file})"
    assert rule in glue(out, "--do_eval").done().out
    assert rule in glue(out / "checkpoint-1", "--do_eval").done().out
    assert Classifier(out).config.margin == 0.3
    for load in (elbert.load_config, AutoConfig.from_pretrained):
        assert load(out).margin == 0.3
    assert f"{file}: exit_thres 0.2 -> 0.6" in edit_key(script, out, "exit_thres", 0.6).done().out
    if find_spec("onnxscript"):
        exported = script(export_onnx.main, "--model_dir", out, "--output", tmp_path / "a.onnx")
        assert rule in exported.done().out
        assert str(tmp_path).encode() not in (tmp_path / "a.onnx").read_bytes()
    out.rename(tmp_path / "renamed")
    assert rule in glue(tmp_path / "renamed", "--do_eval").done().out
    glue(shutil.copytree(tmp_path / "renamed", tmp_path / "copy"), "--do_eval").refused(
        "leads out of", "change_config.py"
    )


def test_a_pick_says_which_exit_file_is_read_from_then_on(
    albert_dir, glue, script, caplog, tmp_path
):
    weights = Path(shutil.copytree(albert_dir, tmp_path / "w"))
    out, file = tmp_path / "out", tmp_path / "keys.json"
    file.write_text('{"exit_thres": 0.6}')
    edit_json(weights / "config.json", exit_config_path=str(file))
    glue(out, "--do_train", "--max_steps", 9, "--learning_rate", 1e-3, weights=weights).done()
    pick = ("--pick", "max_cost=0.9", "--rules", "entropy", "--tables_only", "--no_cuda")
    printed = script(sweep_exits.main, "--model_dir", out, *pick).done().out
    assert f"{file} is no longer read" in printed
    assert json.loads(file.read_text()) == {"exit_thres": 0.6}
    assert "(exit_config.json)" in glue(out, "--do_eval").done().out
    assert f"{file} is not read" in caplog.text
    edit_key(script, out, "exit_config_path", file).done()
    caplog.clear()
    assert f"exit_thres = 0.6 ({file})" in glue(out, "--do_eval").done().out
    assert f"{out / 'exit_config.json'} is not read" in caplog.text


def test_an_edit_of_what_a_training_copied_is_warned_of(albert_dir, glue, tmp_path, caplog):
    """An exit_config.json that no configuration names is copied; so is config.json."""
    weights, out = Path(shutil.copytree(albert_dir, tmp_path / "w")), tmp_path / "out/RTE"
    (weights / "exit_config.json").write_text('{"margin": 0.4}')
    glue(out, "--do_train", "--max_steps", 1, weights=weights).done()
    assert json.loads((out / "exit_config.json").read_text()) == {"margin": 0.4}
    assert "margin = 0.4 (exit_config.json)" in glue(out, "--do_eval").done().out
    assert "was changed since" not in caplog.text
    for name in ("exit_config.json", "config.json"):
        edit_json(weights / name, margin=0.2)
        caplog.clear()
        assert "margin = 0.4 (exit_config.json)" in glue(out, "--do_eval").done().out
        assert f"{weights / name} was changed since" in caplog.text


def test_a_flag_may_name_an_exit_config_anywhere(albert_dir, glue, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text('{"margin": 0.4}')
    weights, out = Path(shutil.copytree(albert_dir, tmp_path / "w")), tmp_path / "out"
    edit_json(weights / "config.json", exit_config_path="nowhere.json")
    path_flags = ("--set", f"exit_config_path={mine}")
    glue(out, "--do_train", "--do_eval", "--max_steps", 1, *path_flags, weights=weights).done()
    assert report_of(out)["rule_sources"]["margin"] == str(mine)
    (tmp_path / "later.json").write_text('{"margin": 0.1}')
    glue(out, "--do_eval", "--set", f"exit_config_path={tmp_path / 'later.json'}").done()
    assert report_of(out)["rule_sources"]["margin"].endswith("later.json")
    path_flags = ("--set", "exit_config_path=typo.json", "--overwrite_output_dir")
    outcome = glue(out, "--do_train", *path_flags, weights=weights)
    outcome.refused(f"{weights / 'typo.json'} does not exist")


FILMS = {
    "latin": ("a good film {}", "a bad film {}"),
    "cyrillic": ("хороший фильм {}", "плохой фильм {}"),
    "han": ("好电影{}", "坏电影{}"),
}


@pytest.mark.slow
def test_texts_in_three_scripts_are_classified_by_a_multilingual_encoder(script, tmp_path):
    """An XLM-RoBERTa with SentencePiece pieces; Classifier reads a text as HF's tokenizer does."""
    rows = [
        (text.format(i), label)
        for texts in FILMS.values()
        for i in range(20)
        for text, label in zip(texts, ("good", "bad"), strict=True)
    ]
    (tmp_path / "text.txt").write_text("\n".join(text for text, _ in rows), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        f"--input={tmp_path}/text.txt --model_prefix={tmp_path}/spm --vocab_size=60 "
        "--hard_vocab_limit=false --minloglevel=2"
    )
    pieces = sentencepiece.SentencePieceProcessor(f"{tmp_path}/spm.model")
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = [(piece, 0.0) for piece in specials]
    vocab += [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(3, len(pieces))]
    twin = tiny_encoder("xlm-roberta", vocab_size=len(vocab) + 1)
    twin.save_pretrained(tmp_path / "xlm")
    tokenizer = XLMRobertaTokenizer([*vocab, ("<mask>", 0.0)])
    tokenizer.save_pretrained(tmp_path / "xlm")
    (tmp_path / "older").mkdir()  # as XLM-RoBERTa was published
    shutil.copy(tmp_path / "spm.model", tmp_path / "older/sentencepiece.bpe.model")
    older = load_tokenizer(tmp_path / "older")
    expected = XLMRobertaTokenizer.from_pretrained(tmp_path / "older")
    for text, _ in rows:
        assert older(text, text)["input_ids"] == expected(text, text)["input_ids"]
    with (tmp_path / "films.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence1", "label"), *rows])
    table, out = tmp_path / "films.csv", tmp_path / "out"
    arguments = f"--model_type xlm-roberta --model_name_or_path {tmp_path}/xlm --do_train --no_cuda"
    arguments += f" --train_file {table} --validation_file {table} --output_dir {out} --do_eval"
    arguments += " --recipe recommended --num_train_epochs 20 --learning_rate 2e-3"
    arguments += " --max_seq_length 20"
    script(run_glue.main, *arguments.split()).done()
    classify = Classifier(out)
    texts = [text for text, _ in rows]
    assert [ids for ids, _ in classify.encode(texts)] == tokenizer(texts)["input_ids"]
    assert tokenizer.unk_token_id not in {x for ids, _ in classify.encode(texts) for x in ids}
    found = [answer["label"] for answer in classify(texts)]
    assert np.mean([a == label for a, (_, label) in zip(found, rows, strict=True)]) > 0.95


# The head's pooler and classifier of transformers, by family.
HEADS = {
    "bert": ("bert.pooler.dense", "classifier"),
    "mpnet": ("classifier.dense", "classifier.out_proj"),
}


@pytest.mark.parametrize(
    ("family", "teaches"),
    [("bert", "as a teacher"), ("bert", "as the last exit"), ("mpnet", "as the last exit")],
)
def test_a_fine_tuned_classifier_gets_exits_and_keeps_its_answers(
    family, teaches, glue, rte, tmp_path
):
    """A classifier of HF's, which teaches the new exits itself; its labels are in another order."""
    names = dict(enumerate(reversed(RTE_LABELS)))
    twin = tiny_encoder(family, "ForSequenceClassification", num_labels=2, id2label=names)
    source, out = save(twin, tmp_path / "hf"), tmp_path / "out"
    steps = ("--max_steps", 3, "--learning_rate", 1e-2)
    keys = ("--recipe", "add_exits", "--set", "exit_thres=0")
    if teaches == "as a teacher":
        steps += ("--teacher", source)
    else:
        keys += ("self_distillation=1",)
    glue(out, "--do_train", "--train_exits_only", *steps, *keys, weights=source).done()
    ours, theirs = load_file(out / "model.safetensors"), load_file(source / "model.safetensors")
    head = "albert.encoder.kept_head"
    pooler, classifier = HEADS[family]
    assert ours[f"{head}.pooler.weight"].equal(theirs[f"{pooler}.weight"])
    assert ours[f"{head}.classifier.weight"].equal(theirs[f"{classifier}.weight"].flip(0))
    assert any("exit_out_layers.0.pooler" in name for name in ours)
    expect_answers_of = pipeline("text-classification", str(source))
    for row in read_examples(get_task("rte"), rte, "dev"):
        answer = Classifier(out)((row.text_a, row.text_b))
        expected = expect_answers_of({"text": row.text_a, "text_pair": row.text_b})
        assert (answer["label"], answer["exit_layer"]) == (expected["label"], 3)
        assert answer["score"] == pytest.approx(expected["score"], abs=1e-5)


@pytest.mark.parametrize("mode", ["elbert", "ponder_albert", "albert_act"])
def test_exits_alone_are_trained(mode, albert_dir, glue, tmp_path):
    heads, states = {"exit_out_layer", "exit_weights", "pooler", "classifier", "ponder", "act"}, []
    for rate in (0, 1e-2):
        two_steps = ("--model_type", mode, "--max_steps", 2, "--learning_rate", rate)
        glue(tmp_path / f"{rate}", "--do_train", "--train_exits_only", *two_steps).done()
        states.append(load_file(tmp_path / f"{rate}/model.safetensors"))
    changed = [name for name in states[0] if not states[0][name].equal(states[1][name])]
    assert all(heads & {*name.split(".")} for name in changed)
    assert any("classifier" in name for name in changed)


def test_trackers_get_flags_curves_and_final_metrics(glue, tmp_path):
    """TensorBoard, which is the default; a service that is not installed is named at once."""
    out = tmp_path / "RTE"
    glue(out, "--do_train", "--do_eval", "--logging_steps", 2, "--eval_strategy", "steps").done()
    curves, report = scalars(out), report_of(out)
    assert len(curves["loss"]) == 1  # of three steps
    assert curves["eval/acc"] == pytest.approx([report["metrics"]["acc"]])
    assert curves["eval/computation_cost"] == pytest.approx([report["computation_cost"]])
    (settings,) = (out / "runs").glob("*/hparams.yml")
    assert yaml.safe_load(settings.read_text())["learning_rate"] == 3e-5
    assert {str(settings.relative_to(out))} < json.loads((out / "written.json").read_text()).keys()
    quiet = tmp_path / "quiet"
    glue(quiet, "--do_train", "--report_to", "none").done()
    assert not (quiet / "runs").exists()
    refused = glue(quiet, "--do_train", "--report_to", "none", "tensorboard")
    refused.refused("all and none stand alone")


class FailingService(GeneralTracker):
    """A tracker whose service does not answer, from one of its methods on."""

    name = "mlflow"
    requires_logging_directory = False
    tracker = None
    fails_at = ""
    finished = 0

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def start(self) -> None:
        self.answer("start")

    def store_init_configuration(self, values: dict) -> None:
        self.answer("store_init_configuration")

    def log(self, values: dict, step: int | None, **_: object) -> None:
        self.answer("log")

    def finish(self) -> None:
        type(self).finished += 1
        self.answer("finish")

    def answer(self, method: str) -> None:
        if method == self.fails_at:
            raise RuntimeError("no\nanswer")


@pytest.mark.parametrize("method", ["start", "store_init_configuration", "log", "finish"])
def test_a_service_that_fails_costs_neither_results_nor_a_training(
    glue, tmp_path, monkeypatch, caplog, method
):
    out = tmp_path / "RTE"
    glue(out, "--do_train", "--do_eval", "--report_to", "none").done()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setitem(trackers.LOGGER_TYPE_TO_CLASS, "mlflow", FailingService)
    monkeypatch.setattr(settings, "find_spec", lambda name: name)
    monkeypatch.setattr(FailingService, "fails_at", method)
    monkeypatch.setattr(FailingService, "finished", 0)
    flags = ("--do_train", "--do_eval", "--overwrite_output_dir", "--report_to", "mlflow")
    run = glue(out, *flags, "--learning_rate", 1e-4)
    if method in ("start", "store_init_configuration"):
        run.refused("--report_to mlflow: no answer; --report_to none trains without it")
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
        assert FailingService.finished == (method != "start")
    else:
        run.done()
        assert caplog.text.count("--report_to mlflow: no answer") == 1
        assert FailingService.finished == 1


def test_a_place_where_no_curves_can_be_written_costs_no_results(trained, glue):
    shutil.rmtree(trained / "runs")
    (trained / "runs").write_text("mine")
    again = ("--do_train", "--overwrite_output_dir", "--learning_rate", 1e-4)
    glue(trained, *again).refused("runs is a file, where --report_to tensorboard needs a folder")
    assert (trained / "training.json").exists()


@pytest.mark.slow
def test_mlflow_gets_flags_curves_and_final_metrics(glue, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "RTE"
    flags = ("--do_train", "--do_eval", "--logging_steps", 1, "--report_to", "mlflow", "trackio")
    if find_spec("trackio") is None:
        glue(out, *flags).refused("--report_to trackio: pip install trackio")
    glue(out, *flags[:-1]).done()
    (run,) = mlflow.search_runs(experiment_names=["elbert"], output_format="list")
    assert run.info.run_name == "RTE"
    assert run.info.status == "FINISHED"
    assert float(run.data.params["learning_rate"]) == 3e-5
    assert run.data.metrics["eval/acc"] == pytest.approx(report_of(out)["metrics"]["acc"])
    losses = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [entry.step for entry in losses] == [1, 2, 3]
    assert not (out / "runs").exists()


@pytest.mark.slow
def test_wandb_gets_flags_curves_and_final_metrics_without_a_network(glue, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    flags = ("--do_train", "--do_eval", "--logging_steps", 1, "--report_to", "wandb")
    glue(tmp_path / "RTE", *flags).done()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()  # records, whose names are text
    assert all(name in content for name in (b"learning_rate", b"loss", b"eval/acc"))


@pytest.mark.slow
def test_codecarbon_writes_a_file_of_the_run(glue, tmp_path):
    pytest.importorskip("codecarbon")
    out = tmp_path / "RTE"
    glue(out, "--do_train", "--report_to", "codecarbon").done()
    ((row,),) = [list(csv.DictReader((out / "emissions.csv").open()))]
    assert float(row["emissions"]) > 0
    assert "emissions.csv" in json.loads((out / "written.json").read_text())
