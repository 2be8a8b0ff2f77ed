"""run_glue.py: what a run checks first, says on its way, and leaves behind; the best model."""

import json
import shutil
import sys
from hashlib import sha256

import torch
from safetensors.torch import load_file

from tests.commands import report_of
from tests.conftest import edit_json


def test_training_anew_removes_what_the_old_weights_gave(trained, glue, caplog):
    glue(trained, "--do_eval", "--do_predict").done()
    (trained / "sweep").mkdir()
    (trained / "sweep/compare.md").touch()
    (trained / "notes.txt").touch()
    edit_json(trained / "config.json", exit_config_path="exit_config.json")
    (trained / "exit_config.json").write_text('{"exit_thres": 0.123}')
    glue(trained, "--do_train", "--overwrite_output_dir").done()
    names = {path.name for path in trained.rglob("*") if path.is_file()}
    derived = {"eval_results.json", "eval_results.txt", "exits.png", "predictions.tsv", "RTE.tsv"}
    derived |= {"layers_all.csv", "compare.md", "exit_config.json"}
    assert not names & derived
    assert "notes.txt" in names
    assert "chosen for the weights before: {'exit_thres': 0.123}" in caplog.text


def test_results_say_where_they_come_from(trained, glue, rte):
    glue(trained, "--do_eval", "--do_predict").done()
    about = report_of(trained)["provenance"]
    assert about["weights"] == sha256((trained / "model.safetensors").read_bytes()).hexdigest()
    assert about["flags"]["data_dir"] == str(rte)
    assert "--do_eval --do_predict" in about["command"]
    assert about["versions"]["torch"] == torch.__version__
    answered = json.loads((trained / "predictions.json").read_text())
    assert answered["provenance"]["weights"] == about["weights"]
    assert answered["provenance"]["data"] != about["data"]
    trained_by = json.loads((trained / "training.json").read_text())
    assert (trained_by["steps"], trained_by["provenance"]["flags"]["do_train"]) == (3, True)


def test_the_best_model_is_kept_and_training_stops_when_no_better_comes(glue, tmp_path):
    out = tmp_path / "out"
    more = ("--logging_steps", 1, "--num_train_epochs", 9, "--learning_rate", 1e-3)
    best = ("--load_best_model_at_end", "--early_stopping_patience", 2)
    outcome = glue(out, "--do_train", "--do_eval", *more, *best).done()
    logged = [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")]
    curve = [entry["eval_acc_per_layer"][-1] for entry in logged if "eval_acc_per_layer" in entry]
    told = json.loads((out / "training.json").read_text())
    assert told["best"] == {"step": 1 + curve.index(max(curve)), "value": max(curve), "since": 2}
    assert told["steps"] == len(curve) == told["best"]["step"] + 2
    assert report_of(out)["acc_per_layer"][-1] == max(curve)
    assert not (out / "best").exists()


def test_no_epochs_train_nothing(glue, tmp_path, albert_dir):
    out = tmp_path / "out"
    glue(out, "--do_train", "--num_train_epochs", 0, "--report_to", "none").done()
    before = load_file(albert_dir / "model.safetensors")
    after = load_file(out / "model.safetensors")
    assert all(torch.equal(after[f"albert.{name}"], before[name]) for name in before)
    assert not (out / "runs").exists()


def test_curves_go_to_the_tracker_that_is_named(glue, tmp_path, monkeypatch):
    """A stand-in for a tracker's package, called as accelerate calls the real one."""
    (tmp_path / "wandb.py").write_text(
        "from unittest.mock import MagicMock\ninit, config = MagicMock(), MagicMock()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out"
    train = ("--do_train", "--logging_steps", 1, "--report_to")
    shown = glue(out, *train, "wandb").done().out
    lines = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    wandb = sys.modules.pop("wandb")
    wandb.init.assert_called_once_with(project="out")
    calls = [(call.kwargs["step"], *call.args) for call in wandb.init.return_value.log.mock_calls]
    logged = [(step, values["loss"]) for step, values in calls if "loss" in values]
    assert logged == [(line["step"], line["loss"]) for line in lines]
    assert [step for step, _ in logged] == [1, 2, 3]
    wandb.init.return_value.finish.assert_called_once_with()
    assert not (out / "runs").exists()
    glue(tmp_path / "other", *train, "clearml").refused("clearml: not installed; pip install")
    assert not (tmp_path / "other").exists()


def test_an_evaluation_may_leave_out_the_pass_over_all_layers(trained, glue):
    whole = glue(trained, "--do_eval").done().out
    assert str(trained / "exits.png") in whole.partition("written:")[2]
    assert "acc per layer = [" in whole
    first = report_of(trained)
    quick = glue(trained, "--do_eval", "--skip_full_depth").done().out
    second = report_of(trained)
    assert second["exits_per_layer"] == first["exits_per_layer"]
    assert second["metrics"] == first["metrics"]
    assert first.keys() - second.keys() == {
        "acc_per_layer",
        "frontier",
        "same_exit_layer_as_fp32",
    }
    assert "exits.png" not in quick
    assert not (trained / "exits.png").exists()
    assert "one text at a time" in quick
    assert "texts/s" in quick


def test_a_dev_file_is_checked_whole_before_training(glue, tmp_path, rte):
    data = tmp_path / "RTE"
    shutil.copytree(rte, data)
    with (data / "dev.tsv").open("a") as file:
        file.write("99\ta man\ta dog\tmaybe\n")
    glue(tmp_path / "out", "--do_train", "--do_eval", data=data).refused(
        "dev.tsv, line 12", "maybe"
    )
    assert not (tmp_path / "out/model.safetensors").exists()


def test_rows_of_other_columns_are_refused_before_the_evaluation(trained, glue):
    rows = trained / "eval_results.txt"
    for content in (b",exit_thres,corr,compute_ratio\n", b"\xff\n"):
        rows.write_bytes(content)
        glue(trained, "--do_eval", "--out_mode", "all").refused(rows, "use --out_mode one")
        assert rows.read_bytes() == content
        assert not (trained / "exits.png").exists()
    glue(trained, "--do_eval", "--out_mode", "one").done()
    glue(trained, "--do_eval", "--out_mode", "all").done()
    assert len(rows.read_text().splitlines()) == 3


def test_cutting_more_than_the_training_did_is_said(trained, glue, caplog):
    glue(trained, "--do_eval").done()
    assert "cuts" not in caplog.text
    glue(trained, "--do_eval", "--max_seq_length", 12).done()
    assert "--max_seq_length 12 cuts" in caplog.text


def test_a_hint_names_only_keys_that_may_be_set(trained, glue):
    glue(trained, "--do_eval", "--set", "pooler_inputs=cls").refused("allowed: thres_name")
    glue(trained, "--do_train", "--set", "pooler_inputs=cls").refused("did you mean pooler_input")
