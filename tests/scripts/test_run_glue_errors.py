"""What run_glue.py refuses: exit status 2, a message with the thing and the remedy, nothing
overwritten."""

import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from modeling import ElbertForSequenceClassification
from tests.conftest import contents, edit_json

TRAIN = ("--do_train", "--do_eval")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--task_name RTEE", ["'RTEE'", "did you mean rte"]),
        ("--learning_rate -1", ["--learning_rate", "-1"]),
        ("--learning_rate nan", ["--learning_rate", "nan"]),
        ("--learning_rate fast", ["--learning_rate", "fast"]),
        ("--per_gpu_train_batch_size 0", ["--per_gpu_train_batch_size", "0", "1 or more"]),
        ("--max_seq_length 41", ["--max_seq_length 41", "max_position_embeddings = 40"]),
        ("--max_seq_length 2", ["--max_seq_length 2", "3"]),
        ("--set exit_thresh=1", ["exit_thresh", "did you mean exit_thres"]),
        ("--set exit_thres=7", ["exit_thres = 7", "0 to 1"]),
        ("--set cnt_thres=5", ["cnt_thres = 5", "num_hidden_layers = 4"]),
        ("--fp16", ["--fp16 needs a GPU", "--bf16"]),
        ("--fp16 --bf16", ["--fp16 and --bf16"]),
        ("--model_type gpt2", ["--model_type", "albert"]),
        ("--tokenizer_name /nowhere/tok", ["/nowhere/tok"]),
        ("--config_name /nowhere/config", ["/nowhere/config"]),
        ("--model_name_or_path /nowhere/w", ["/nowhere/w"]),
        ("--output_dir /proc/nowhere/out", ["/proc/nowhere/out"]),
        ("--output_dir README.md", ["README.md"]),
        (f"--output_dir {'x' * 5000}", ["--output_dir", "cannot be made"]),
        (f"--resume_from_checkpoint {'x' * 5000}", ["--resume_from_checkpoint"]),
        ("--data_dir /nowhere/RTE", ["train.tsv", "/nowhere/RTE", "download_glue_data.py"]),
        ("--report_to clearml", ["clearml: not installed; pip install"]),
        ("--onnx model.onnx", ["--onnx", "leave out --do_train"]),
        ("--load_best_model_at_end --metric_for_best_model acu", ["did you mean acc"]),
        ("--load_best_model_at_end --metric_for_best_model acc@1.5", ["at most 1"]),
        (
            "--load_best_model_at_end --metric_for_best_model acc@0.5 --model_type albert_act",
            ["nothing to sweep"],
        ),
        ("--submission_dir all", ["add --do_predict"]),
    ],
)
def test_flags_that_are_refused(glue, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("")
    glue(tmp_path / "out", "--do_train", *arguments.split()).refused(*words)
    assert (tmp_path / "README.md").read_text() == ""
    assert not (tmp_path / "out").exists() or contents(tmp_path / "out") == {}


GOOD = "index\tsentence1\tsentence2\tlabel\n0\ta man\ta dog\tentailment\n"


@pytest.mark.parametrize("name", ["train", "dev"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["{}.tsv is empty"]),
        (GOOD + "1\ta man\n", ["{}.tsv, line 3", "sentence2"]),
        (GOOD + "1\ta man\ta dog\tmaybe\n", ["line 3", "'maybe'", "entailment, not_entailment"]),
    ],
)
def test_a_bad_data_file_is_named_with_its_line_before_training(
    glue, rte, tmp_path, name, content, words
):
    data, out = shutil.copytree(rte, tmp_path / "RTE"), tmp_path / "out"
    out.mkdir()
    (data / f"{name}.tsv").write_text(content)
    (out / "config.json").write_text('{"mine": 1}')
    outcome = glue(out, *TRAIN, "--overwrite_output_dir", data=data)
    outcome.refused(*(word.format(name) for word in words))
    assert contents(out) == {"config.json": b'{"mine": 1}'}


@pytest.mark.parametrize(
    ("edit", "arguments", "words"),
    [
        ({}, "--do_train", ["--overwrite_output_dir"]),
        ({}, "--do_eval --max_seq_length 500", ["--max_seq_length 500", "= 40"]),
        ({}, "--do_eval --set pooler_inputs=cls", ["did you mean pooler_input"]),
        ({"exit_thres": 1.2}, "--do_eval", ["config.json", "exit_thres = 1.2", "0 to 1"]),
        ({"cnt_thres": 5}, "--do_eval", ["cnt_thres = 5", "num_hidden_layers = 4"]),
        ({"thres_name": "bias_7"}, "--do_eval", ["config.json", "bias_7", "patience"]),
        ({"intermediate_size": 64}, "--do_eval", ["has shape", "config.json"]),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "--do_eval", ["has shape"]),
        ({"finetuning_task": "mrpc"}, "--do_eval", ["trained on mrpc", "rte"]),
    ],
)
def test_what_does_not_fit_a_trained_model_is_refused(trained, glue, edit, arguments, words):
    edit_json(trained / "config.json", **edit)
    before = contents(trained)
    glue(trained, *arguments.split()).refused(*words)
    assert contents(trained) == before


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda out: (out / "config.json").write_text('{"a'), ["config.json", "not valid JSON"]),
        (lambda out: (out / "eval_results.txt").write_bytes(b"\xff\n"), ["use --out_mode one"]),
        (
            lambda out: (out / "eval_results.txt").write_text(",exit_thres,corr\n"),
            ["eval_results.txt has other columns", "use --out_mode one"],
        ),
    ],
)
def test_a_spoilt_file_is_named_and_kept(trained, glue, spoil, words):
    spoil(trained)
    before = contents(trained)
    glue(trained, "--do_eval", "--out_mode", "all").refused(*words)
    assert contents(trained) == before


@pytest.mark.parametrize("action", ["--do_train --overwrite_output_dir", "--do_eval"])
def test_an_output_dir_that_cannot_be_written_is_named(trained, glue, monkeypatch, action):
    before = contents(trained)
    monkeypatch.setattr(os, "access", lambda *_: False)
    glue(trained, *action.split()).refused(trained, "written")
    assert contents(trained) == before


def test_untrained_or_missing_or_broken_weights_are_not_evaluated(
    albert_dir, trained, glue, tmp_path
):
    """A plain ALBERT has no exits; random ones would print numbers that mean nothing."""
    before = contents(albert_dir)
    glue(albert_dir, "--do_eval").refused(albert_dir, "not a trained model", "--do_train")
    assert contents(albert_dir) == before
    glue(tmp_path, "--do_eval").refused(tmp_path, "--do_train")
    path = trained / "model.safetensors"
    save_file({name: tensor * torch.nan for name, tensor in load_file(path).items()}, path)
    ended = glue(trained, "--do_eval")
    ended.refused("NaN or infinite")
    assert "acc" not in ended.out


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(glue, tmp_path, monkeypatch):
    """The third step's loss is NaN."""
    forward, calls = ElbertForSequenceClassification.forward, []

    def spoilt(self, *arguments, **keywords):
        out = forward(self, *arguments, **keywords)
        calls.append(1)
        if len(calls) == 3:
            out.loss = out.loss * float("nan")
        return out

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(ElbertForSequenceClassification, "forward", spoilt)
        outcome = glue(out, "--do_train", "--save_steps", 1)
    outcome.refused("the loss is nan at step 3", "learning rate 1e-05", out / "checkpoint-2")
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
    assert not (out / "config.json").exists()
    glue(out, "--do_eval").refused("did not finish", "checkpoint-2")
    glue(out / "checkpoint-2", "--do_eval").done()
