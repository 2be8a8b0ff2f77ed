"""What run_glue.py refuses: exit status 2, a message with the thing and the remedy, nothing
overwritten."""

import os

import pytest

from evaluation import results
from modeling import ElbertForSequenceClassification
from tests.commands import no_file_above
from tests.conftest import contents, edit_json


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
def test_bad_flags_are_refused(glue, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("")
    glue(tmp_path / "out", "--do_train", *arguments).refused(*words)
    assert (tmp_path / "README.md").read_text() == ""
    assert not (tmp_path / "out").exists() or contents(tmp_path / "out") == {}


def test_nothing_to_do_is_said(glue, tmp_path):
    glue(tmp_path / "out").refused("--do_train")


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
def test_a_bad_data_file_is_named_with_its_line(glue, tmp_path, content, words):
    data, out = tmp_path / "RTE", tmp_path / "out"
    for folder in (data, out):
        folder.mkdir()
    (data / "train.tsv").write_text(content)
    (out / "config.json").write_text('{"mine": 1}')
    glue(out, "--do_train", "--overwrite_output_dir", data=data).refused(*words)
    assert contents(out) == {"config.json": b'{"mine": 1}'}


def test_an_output_dir_that_is_not_empty_is_kept(trained, glue):
    before = contents(trained)
    glue(trained, "--do_train").refused(trained, "--overwrite_output_dir")
    assert contents(trained) == before


def test_an_output_dir_that_cannot_be_written_is_named(trained, glue, monkeypatch):
    before = contents(trained)
    monkeypatch.setattr(os, "access", lambda *_: False)
    for action in (("--do_train", "--overwrite_output_dir"), ("--do_eval",), ("--do_predict",)):
        glue(trained, *action).refused(trained, "written")
    assert contents(trained) == before


def test_a_full_disk_during_an_evaluation_keeps_the_old_results(trained, glue):
    glue(trained, "--do_eval")
    before = (trained / "eval_results.txt").read_bytes()
    with no_file_above(10):
        glue(trained, "--do_eval").refused("cannot write", "eval_results.txt")
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
def test_a_bad_trained_config_is_refused(trained, glue, edit, words):
    edit_json(trained / "config.json", **edit)
    before = contents(trained)
    glue(trained, "--do_eval").refused(*words)
    assert contents(trained) == before


def test_a_config_cut_in_half_is_named(trained, glue):
    path = trained / "config.json"
    path.write_text(path.read_text()[:200])
    glue(trained, "--do_eval").refused(path, "not valid JSON")


def test_untrained_weights_are_not_evaluated(albert_dir, glue):
    """A plain ALBERT has no exits; random ones would print numbers that mean nothing."""
    before = contents(albert_dir)
    glue(albert_dir, "--do_eval").refused(albert_dir, "not a trained model", "--do_train")
    assert contents(albert_dir) == before


def test_an_evaluation_checks_the_length_too(trained, glue):
    outcome = glue(trained, "--do_eval", "--max_seq_length", 500)
    outcome.refused("--max_seq_length 500", "max_position_embeddings = 40")


def test_no_trained_model_says_what_to_run(glue, tmp_path):
    glue(tmp_path, "--do_eval").refused(tmp_path, "--do_train")


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


def test_a_label_count_that_does_not_match_is_refused(trained, glue, monkeypatch):
    whole = results.predictions_of
    monkeypatch.setattr(results, "predictions_of", lambda logits: whole(logits)[:-1])
    glue(trained, "--do_predict").refused("4 predictions for 5 examples", "not written")
    assert not (trained / "RTE.tsv").exists()
