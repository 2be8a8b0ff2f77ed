"""sweep_exits.py from its flags to its files, against real runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import exit_lab.exit_file
import exit_lab.lab
import sweep_exits
from elbert import ElbertConfig, PonderAlbertClassifier, PonderAlbertConfig
from evaluation.sweep import sweepable
from exit_lab.choice import Choice, split
from exit_lab.recording import RECORDING
from modeling.files import weights_hash
from runs.output_dir import locked_for_sweep
from tests.conftest import PAIRS, TINY, edit_json, sentence, slow, tsv, write
from tests.forks import run_together
from tests.scripts.conftest import LABELS, evaluated, flags, head_of, rows_of, save, write_data

FEW = ("--grid", "exit_thres=0:1:0.2", "margin=0,0.1", "range_tmp=0.1,0.3")
OF_VALUES = (*FEW[:2], FEW[3])  # of a regression, whose rules read no margin
QUICK = ("--tables_only", *FEW)
TIMES = {"latency_ms", "latency_p95_ms"}


PONDER = ("--model_type", "ponder_albert")
THRESHOLDS = ("--grid", "exit_thres=0:1:0.1")


def setting_in(row: dict[str, str], config_class: type) -> dict[str, str]:
    """Return the exit keys that a row of sweep.csv has, the rule's name first."""
    keys = {name: row[name] for name in config_class.table.exit_keys if row.get(name)}
    return {config_class.rule_key: row["rule"], **keys}


def row_of(rows: list[dict[str, str]], picked: dict[str, Any]) -> dict[str, str]:
    """Find the row of sweep.csv that exit_config.json was picked from."""

    def agrees(row: dict[str, str]) -> bool:
        setting = setting_in(row, ElbertConfig)
        rule = setting.pop(ElbertConfig.rule_key)
        keys_agree = all(float(text) == picked[name] for name, text in setting.items())
        return rule == picked[ElbertConfig.rule_key] and keys_agree

    (row,) = filter(agrees, rows)
    return row


@pytest.fixture
def ponder_place(tmp_path, spiece) -> Path:
    """Random ponder models whose λ differ, and data: place/models/TASK and place/data/TASK."""
    for task in ("rte", "sts-b"):
        torch.manual_seed(3)
        model = PonderAlbertClassifier(PonderAlbertConfig(**TINY, **head_of(task)))
        with torch.no_grad():
            model.ponder[-1].weight.mul_(4)
        save(model, tmp_path / "models" / task, spiece)
        write_data(tmp_path / "data" / task, task)
    return tmp_path


def test_two_sweeps_do_not_write_into_one_folder(trained, script):
    command = (sweep_exits.main, "--model_dir", trained)
    with locked_for_sweep([trained / "sweep"]):
        script(*command).refused("another run is writing a sweep", "--output_dir")
        assert not (trained / "sweep/sweep.csv").exists()


def test_a_models_folder_is_all_that_a_sweep_needs(trained, rte, script):
    tables, file = [], trained / "sweep/sweep.csv"
    task = ("--task_name", "RTE", "--data_dir", rte, "--max_seq_length", 32, "--do_lower_case")
    for more in ((), task):
        script(sweep_exits.main, "--model_dir", trained, "--no_cuda", *QUICK, *more).done()
        tables.append([{k: x for k, x in row.items() if k not in TIMES} for row in rows_of(file)])
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("places", "task"),
    [
        *(slow("place", task) if task == "mnli" else ("place", task) for task in LABELS),
        slow("ponder_place", "rte"),
        ("ponder_place", "sts-b"),
    ],
)
def test_rows_of_the_sweep_are_what_real_runs_give(places, task, sweep, glue, request):
    """Rows from all over the sweep, each run again with early exit, one example at a time."""
    place, is_ponder = request.getfixturevalue(places), places == "ponder_place"
    config_class, grid, mode = ElbertConfig, FEW, ()
    if is_ponder:
        config_class, grid, mode = PonderAlbertConfig, THRESHOLDS, PONDER
    elif task == "sts-b":
        grid = OF_VALUES
    sweep(place, task, "--tables_only", *grid).done()
    *rows, _, _, _, _ = rows_of(place / "models" / task / "sweep/sweep.csv")
    assert len({row["compute_ratio"] for row in rows}) > (3 if is_ponder else 5)
    if is_ponder:
        assert {row["rule"] for row in rows} == {*sweepable(PonderAlbertConfig())}
        thresholds = {float(row["exit_thres"]) for row in rows if row["exit_thres"]}
        assert sorted(thresholds) == pytest.approx([n / 10 for n in range(11)])
    for number in np.linspace(0, len(rows) - 1, 8).astype(int):
        row = rows[number]
        keys = [f"{name}={text}" for name, text in setting_in(row, config_class).items()]
        report = evaluated(glue, place, task, *mode, "--skip_full_depth", "--set", *keys)
        assert report["exits_per_layer"] == [int(row[f"exits_{n}"]) for n in range(1, 5)]
        assert report["computation_cost"] == pytest.approx(float(row["compute_ratio"]))
        assert report["exit_sample_ratio"] == pytest.approx(float(row["exit_sample_ratio"]))
        for name, value in report["metrics"].items():
            assert value == pytest.approx(float(row[name]), abs=1e-6), (name, row)


def test_verify_finds_a_recording_that_is_not_the_models(place, sweep):
    path = place / "models/rte/sweep" / RECORDING
    outcome = sweep(place, "rte", "--verify", 4, *QUICK).done()
    assert "verified 4 settings at batch size 1: every exit layer is equal" in outcome.out
    with safe_open(path, framework="pt") as file:
        stamp = file.metadata()
    tensors = load_file(path)
    tensors["all_logits"] = -3 * tensors["all_logits"].flip(0)
    save_file(tensors, path, metadata=stamp)
    outcome = sweep(place, "rte", "--verify", 20, *QUICK)
    outcome.refused("in a real run, but at")


# The recording.


@pytest.mark.slow
def test_two_processes_record_what_one_does(place, sweep, tmp_path):
    sweep(place, "mnli", "--output_dir", tmp_path / "one", *QUICK).done()
    both = flags(place, "mnli", "--output_dir", tmp_path / "two", *QUICK)
    assert run_together(2, both, tmp_path / "log", main=sweep_exits.main) == [0, 0]
    assert not (tmp_path / "log.1").read_text()
    assert torch.equal(*(load_file(tmp_path / x / RECORDING)["all_logits"] for x in ("one", "two")))
    for rows in zip(*(rows_of(tmp_path / x / "sweep.csv") for x in ("one", "two")), strict=True):
        assert {name for name in rows[0] if rows[0][name] != rows[1][name]} <= TIMES


LOGITS = "models/rte/sweep/all_logits.safetensors"
OTHERS = "the recording is of other weights, keys, data, batch size, number type, device or threads"
RECORDS_70 = "recording the answers of all layers to 70 examples"


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("models/rte/model.safetensors", lambda old: old[:-1] + b"\x01", OTHERS),
        ("data/rte/dev.tsv", lambda old: old.replace(b"dog", b"cat", 1), OTHERS),
        ("data/rte/dev.tsv", lambda old: old.replace(b"\tent", b"\tnot_ent", 1), OTHERS),
        ("models/rte/config.json", lambda old: old.replace(b"cls", b"mean"), OTHERS),
        (LOGITS, lambda old: old[:-100], "the recording is damaged"),
    ],
)
def test_a_recording_is_made_anew_where_it_is_of_something_else(place, sweep, name, change, reason):
    first = sweep(place, "rte", *QUICK).out
    assert f"{place / LOGITS}: there is no recording yet; {RECORDS_70}" in first
    edit_json(place / "models/rte/config.json", exit_thres=0.7, thres_name="patience")
    again = sweep(place, "rte", *QUICK).out  # a rule changes no answer
    assert f"{place / LOGITS}: reused" in again
    changed = change((place / name).read_bytes())
    assert changed != (place / name).read_bytes()
    (place / name).write_bytes(changed)
    outcome = sweep(place, "rte", *QUICK).done()
    assert f"{reason}; {RECORDS_70}" in outcome.out


def test_a_recording_of_another_number_type_is_not_reused(place, sweep):
    recorded = []
    for dtype in ("fp32", "bf16", "fp32"):
        outcome = sweep(place, "rte", "--dtype", dtype, *QUICK).done()
        assert RECORDS_70 in outcome.out
        recorded.append(load_file(place / LOGITS)["all_logits"])
    assert torch.equal(recorded[0], recorded[2])
    assert not torch.equal(recorded[0], recorded[1])


def test_another_sweep_leaves_nothing_of_the_one_before(place, sweep):
    folder = place / "models/rte/sweep"
    sweep(place, "rte", "--compare", *QUICK).done()
    assert (folder / "compare.md").exists()
    (folder / "notes.txt").touch()
    sweep(place, "rte", *QUICK).done()
    left = {"all_logits.safetensors", "sweep.csv", "frontier.csv", "provenance.json", "notes.txt"}
    left.add("risk_coverage.csv")
    assert {path.name for path in folder.iterdir()} == left | {"written.json"}
    about = json.loads((folder / "provenance.json").read_text())
    assert about["weights"] == weights_hash(place / "models/rte")
    assert {"data", "command", "flags", "commit", "versions"} <= about.keys()


# Picking.


def test_the_next_evaluation_uses_what_was_picked(place, sweep, glue):
    """What else exit_config.json says stays."""
    model = place / "models/rte"
    edit_json(model / "config.json", exit_config_path="elsewhere.json")
    old = {"my_out_dir": "mine", "thres_name": "bias_3", "range_tmp": 0.1}
    (model / "exit_config.json").write_text(json.dumps(old))
    goal = ("--rules", "entropy", "--pick", "max_cost=0.6")
    outcome = sweep(place, "rte", "--tables_only", *goal, *THRESHOLDS).done()
    assert "random exits at layer" in outcome.out
    picked = json.loads((model / "exit_config.json").read_text())
    assert "Picked: entropy" in outcome.out
    assert "'elsewhere.json' -> 'exit_config.json'" in outcome.out
    assert (picked["my_out_dir"], "range_tmp" in picked) == ("mine", False)
    assert json.loads((model / "exit_config.json.1").read_text()) == old  # the user's own
    assert picked["provenance"]["weights"] == weights_hash(model)
    row = row_of(rows_of(model / "sweep/sweep.csv"), picked)
    report = evaluated(glue, place, "rte")
    assert report["computation_cost"] == pytest.approx(float(row["compute_ratio"]))
    assert report["rule"]["thres_name"] == "entropy"


@pytest.mark.parametrize("task", ["rte", "sts-b"])
@pytest.mark.parametrize("rule", ["learnt", "optimal_stopping"])
def test_a_rule_is_fitted_chosen_and_used(rule, task, place, sweep, glue):
    """Also for values, of which each example has its own exit; as it stands without --rules."""
    model, out = place / "models" / task, ("--tables_only", *THRESHOLDS)
    if rule == "optimal_stopping":
        out = ("--tables_only",)
    sweep(place, task, *out, "--rules", rule, "--pick", "max_cost=0.8", "--verify", "3").done()
    picked = json.loads((model / "exit_config.json").read_text())
    layers = TINY["num_hidden_layers"]
    is_value = task == "sts-b"
    if rule == "learnt":
        assert [len(row) for row in picked["learnt_weights"]] == [4 if is_value else 3] * layers
    else:
        assert [len(row) for row in picked["exit_calibration"]] == [3 if is_value else 6] * layers
        assert {len(row) for row in picked["stopping_thresholds"]} == {layers}

    def fitted_rows() -> list[dict[str, str]]:
        """Rows of the rule without what differs between sweeps: times, and other rules' keys."""
        rows = [row for row in rows_of(model / "sweep/sweep.csv") if row["rule"] == rule]
        return [{k: x for k, x in row.items() if x and k not in TIMES} for row in rows]

    fitted, report = fitted_rows(), evaluated(glue, place, task)
    row = row_of(fitted, picked)
    assert report["computation_cost"] == pytest.approx(float(row["compute_ratio"]))
    assert any(float(row["compute_ratio"]) % 0.25 for row in fitted)  # examples of several layers
    metric = "corr" if is_value else "acc"
    assert report["metrics"][metric] == pytest.approx(float(row[metric]), abs=1e-6)
    sweep(place, task, *out).done()
    assert fitted_rows() == fitted
    goal = ("--rules", rule, "--pick", "risk=0.5", "delta=0.1")
    sweep(place, task, *out, *goal).refused(f"--rules {rule} fits the rule", "max_drop")
    # Nor is there a guarantee on the rows to which the saved rule was fitted.
    goal = ("--pick", "risk=0.5", "delta=0.1")
    sweep(place, task, *out, *goal).refused("among these dev rows", "--validation_file")
    few = ("--max_eval_samples", "8", "--tables_only")
    sweep(place, task, *few, *goal).refused("among these dev rows", "--validation_file")
    # With another split, the rows of that fit would report.
    other = ("--seed", "1", "--tables_only", "--pick", "max_cost=0.8")
    sweep(place, task, *other).refused("are in the held-out half here", "--seed of that fit")
    sweep(place, task, *other, "--rules", rule).done()


@pytest.fixture
def constant(place) -> Path:
    """A model that answers all examples alike."""
    weights = place / "models/rte/model.safetensors"
    tensors = load_file(weights)
    for name in tensors:
        if "exit_out" in name and "classifier" in name:
            tensors[name] *= 0
    save_file(tensors, weights, {"format": "pt"})
    return place


def test_a_model_that_has_learnt_nothing_is_said_to_be_suspect_and_not_picked(
    constant, sweep, script, tmp_path
):
    model = constant / "models/rte"
    quick = ("--tables_only", "--rules", "entropy")
    assert "suspect: all examples get the answer" in sweep(constant, "rte", *quick).done().out
    ended = sweep(constant, "rte", *quick, "--pick", "max_drop=0.01")
    assert "suspect: all examples get the answer" in ended.out
    ended.refused("gives all examples the same answer", "as the last layer does", "train longer")
    assert not (model / "exit_config.json").exists()
    assert (model / "sweep/sweep.csv").exists()  # the sweep itself is of use
    other = shutil.copytree(model, tmp_path / "other")
    compared = flags(constant, "rte", "--compare", model, other, *quick)[2:]
    out = script(sweep_exits.main, *compared).done().out
    assert out.count("all layers: all examples get the answer") == 2


@pytest.mark.parametrize("task", ["rte", "sts-b"])
def test_where_every_setting_loses_too_much_all_layers_run_as_they_were_trained(
    task, place, sweep, glue, monkeypatch
):
    model = place / "models" / task
    trained = evaluated(glue, place, task, "--set", "thres_name=entropy", "exit_thres=0")
    none_allowed = Choice(None, "cheapest setting within 0 of full depth", max_drop=0)
    monkeypatch.setattr(exit_lab.lab, "choose", lambda *given: none_allowed)
    # The random model of RTE gives all examples one answer.
    monkeypatch.setattr(exit_lab.exit_file, "check_answers_differ", lambda *given: None)
    fitted = ("--tables_only", "--rules", "optimal_stopping", "--pick", "max_drop=0")
    ended = sweep(place, task, *fitted).done()
    assert "no setting with early exits loses at most 0: all layers run" in ended.out
    exit_keys = json.loads((model / "exit_config.json").read_text())
    assert exit_keys["thres_name"] == "entropy"
    assert exit_keys.get("exit_thres", 0) == 0  # which no predicted value reads
    assert exit_keys["reference"]["held_out"]["computation_cost"] == 1
    assert "exit_calibration" not in exit_keys
    picked = evaluated(glue, place, task)
    assert picked["computation_cost"] == 1
    assert picked["metrics"] == trained["metrics"]


def test_texts_of_which_the_tokenizer_knows_no_word_are_told(constant, sweep):
    rows = "".join(f"{i}\tξ ψ\tω\t{'not_' * (i % 2)}entailment\n" for i in range(20))
    write(constant / "data/rte/dev.tsv", f"index\tsentence1\tsentence2\tlabel\n{rows}")
    ended = sweep(constant, "rte", "--tables_only", "--rules", "entropy", "--pick", "max_drop=0")
    ended.refused("same answer, as the last layer does", "tokens are unknown to the tokenizer")


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ("risk=0.02 delta=0.05", "even a setting without a single loss needs 149 examples"),
        ("max_cost=0.05", "the cheapest setting costs 0."),
        ("max_p95_ms=1e-6", "the fastest setting takes "),
    ],
)
def test_nothing_is_picked_when_no_setting_qualifies(place, sweep, goal, reason):
    ended = sweep(place, "rte", "--tables_only", "--pick", *goal.split(), *FEW)
    ended.refused("no setting qualifies", reason)
    assert not (place / "models/rte/exit_config.json").exists()
    assert (place / "models/rte/sweep/sweep.csv").exists()  # the sweep itself is of use


def test_what_was_picked_is_measured_as_a_run_measures_it(place, sweep, glue):
    """The reference in exit_config.json: exits, cost, scores, lengths, of the dev rows."""
    model = place / "models/rte"
    sweep(
        place, "rte", "--tables_only", *THRESHOLDS, "--rules", "entropy", "--pick", "max_cost=0.8"
    ).done()
    reference = json.loads((model / "exit_config.json").read_text())["reference"]
    report = evaluated(glue, place, "rte")
    assert reference["exits_per_layer"] == report["exits_per_layer"]
    assert reference["computation_cost"] == pytest.approx(report["computation_cost"])
    for name in ("length", "unknown_tokens", "rule", "examples", "max_length"):
        assert reference[name] == report["reference"][name]
    edges, run_edges = reference["score"]["edges"], report["reference"]["score"]["edges"]
    assert edges == pytest.approx(run_edges, abs=1e-5)
    held_out = reference["held_out"]
    assert held_out["examples"] == 35
    assert 0 <= held_out["acc"] <= 1


def test_a_guarantee_says_one_thing_and_each_evaluation_repeats_it(place, sweep, glue, script):
    """It is void for another rule, other weights and examples of another kind."""
    model = place / "models/rte"
    command = ("--tables_only", "--rules", "entropy", *THRESHOLDS, "--pick")
    printed = sweep(place, "rte", *command, "risk=0.6", "delta=0.4").done().out
    statement = "with a probability of at least 0.6 over the draw of the 35 calibration examples"
    assert f"Guaranteed: {statement}, at most 0.6 of new examples" in printed
    assert "may lose" not in printed
    picked = json.loads((model / "exit_config.json").read_text())
    guarantee = picked["guarantee"]
    assert (guarantee["risk"], guarantee["delta"]) == (0.6, 0.4)

    # By hand: entropy below the threshold at the first layer that is so sure, or the last.
    recorded = load_file(model / "sweep" / RECORDING)
    probabilities = recorded["all_logits"].double().softmax(-1)
    entropy = -(probabilities * probabilities.log()).sum(-1) / np.log(2)
    is_sure = entropy < picked["exit_thres"]
    is_sure[-1] = True
    exits = is_sure.int().argmax(0)
    answers = probabilities.argmax(-1)
    early = answers.gather(0, exits[None])[0]
    lost = (answers[-1] == recorded["labels"]) & (early != recorded["labels"])
    held_out = split(70, 0.5, 42).report
    assert guarantee["held_out_lost"] == int(lost[held_out].sum())
    assert f"Of the 35 held-out examples, {guarantee['held_out_lost']} are" in printed

    def said(*more, data=place / "data/rte") -> str:
        outcome = glue(model, "--do_eval", *more, weights=model, data=data, task="rte")
        return outcome.done().out

    assert f"guarantee: {statement}" in said()
    assert f"wrong at the exit, of these examples = {float(lost.double().mean()):.4f}" in said()
    assert "VOID here, since the exit rule is another" in said("--set", "exit_thres=0.111")
    assert "VOID here, since it is for number type fp32" in said("--dtype", "bf16")
    other = place / "data/other"
    rows = [(i, sentence(i, 14), sentence(i, 14), LABELS["rte"][i % 2]) for i in range(70)]
    tsv(other / "dev.tsv", f"{PAIRS}\tlabel", rows)
    assert "these examples are of another kind (" in said("--max_seq_length", 40, data=other)
    tensors = load_file(model / "model.safetensors")
    tensors["albert.pooler.weight"] *= 1.01
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    assert "VOID here, since the model has another weights hash" in said()
    sweep(place, "rte", *command, "max_cost=0.8").done()
    assert "guarantee" not in json.loads((model / "exit_config.json").read_text())


def test_a_setting_under_which_all_exit_at_one_layer_is_said_to_need_no_exits(place, sweep):
    printed = (
        sweep(
            place,
            "rte",
            "--tables_only",
            "--rules",
            "entropy",
            "--grid",
            "exit_thres=1",
            "--pick",
            "max_cost=0.9",
        )
        .done()
        .out
    )
    assert "all examples exit after layer 1: a fixed-depth network of 1 layer would do" in printed


def test_the_risk_coverage_curve_is_that_of_the_recorded_answers(place, sweep):
    """Held-out examples in the order of their scores, at full depth: counted by hand."""
    printed = sweep(place, "rte", "--tables_only", "--rules", "entropy", *THRESHOLDS).done().out
    assert "Answering only certain examples" in printed
    folder = place / "models/rte/sweep"
    recorded = load_file(folder / RECORDING)
    rows = split(70, 0.5, 42).report
    probabilities = recorded["all_logits"][-1].double().softmax(-1)[rows].numpy()
    is_wrong = probabilities.argmax(-1) != recorded["labels"][rows].numpy()
    curve = [r for r in rows_of(folder / "risk_coverage.csv") if r["answers"] == "full depth"]
    assert curve[-1]["coverage"] == "1.0"
    for row in curve:
        is_answered = probabilities.max(-1) >= float(row["abstain_below"]) - 1e-7
        assert float(row["coverage"]) == pytest.approx(is_answered.mean())
        assert float(row["risk"]) == pytest.approx(is_wrong[is_answered].mean())


# Comparing and seeing.


def test_models_are_compared_in_one_table(place, sweep, script):
    second = shutil.copytree(place / "models/rte", place / "models/rte-2")
    tensors = load_file(second / "model.safetensors")
    tensors["albert.pooler.weight"] *= 1.5
    save_file(tensors, second / "model.safetensors", metadata={"format": "pt"})
    two = ("--compare", place / "models/rte", place / "models/rte-*")
    out = script(sweep_exits.main, *flags(place, "rte", *two)[2:]).done().out
    assert f"| rte, 70 examples | {two[1]} | {two[2]} | second − first |" in out
    sweep(place, "rte", *two).refused("without --model_dir")


@pytest.fixture
def several(place) -> Path:
    """Two models with the same weights, elbert-1 and elbert-2, with the flags of a training."""
    models = place / "models"
    for number in (1, 2):
        shutil.copytree(models / "rte", models / f"elbert-{number}")
        say_training(models / f"elbert-{number}", place)
    (models / "elbert-2.log").touch()  # no folder
    return models


def say_training(model: Path, place: Path, length: int = 32) -> None:
    """Write a model's training.json: its data are place/data/rte."""
    flags_then = {"task_name": "rte", "data_dir": str(place / "data/rte"), "max_seq_length": length}
    (model / "training.json").write_text(json.dumps({"provenance": {"flags": flags_then}}))


@pytest.mark.slow
def test_patterns_of_models_are_all_that_a_comparison_needs(
    several, place, ponder_place, script, tmp_path
):
    """Rules of two modes on the data of their trainings: a curve each, a table, a figure."""
    shutil.copytree(ponder_place / "models/rte", several / "ponder-1")
    say_training(several / "ponder-1", place)

    def compare(*more):
        return script(sweep_exits.main, "--compare", *more, "--no_cuda")

    names = (f"{several}/elbert-*", f"{several}/ponder-*")
    rules = ("--rules", "entropy", "patience", "threshold", "--grid", "exit_thres=0:1:0.1")
    out = ("--output_dir", tmp_path / "out", "--figure", tmp_path / "figure.pdf")
    text = compare(*names, *rules, *out).done().out
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    labels = [f"{names[0]}: {rule} (2 seeds)" for rule in ("entropy", "patience")]
    labels.append(f"{names[1]}: threshold")
    assert [label for label in rows if ": " in label] == [*labels, *labels, *labels[1:]]
    assert (tmp_path / "out/compare.md").read_text() in text
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "out/compare.png").read_bytes().startswith(b"\x89PNG")
    origins = json.loads((tmp_path / "out/compare.json").read_text())["provenance"]
    assert origins[f"{several}/elbert-1"]["weights"] == weights_hash(several / "elbert-1")
    rows = rows_of(tmp_path / "out/compare.csv")
    # Two seeds with the same weights are one model.
    alone = ("--rules", "entropy", "--grid", "exit_thres=0:1:0.1", "--tables_only")
    compare(f"one={several}/elbert-1", *alone, "--output_dir", tmp_path / "one").done()
    means = [row["acc"] for row in rows if row["method"].endswith("entropy")]
    rows = rows_of(tmp_path / "one/compare.csv")
    assert (means, {row["method"] for row in rows}) == ([row["acc"] for row in rows], {"one"})
    assert len({*means}) > 1
    compare(*names, "--rules", "entropy").refused(f"{several}/ponder-1 has none of them")
    compare(names[0], "--rules", "entropy", "--grid", "margin=0").refused("--grid margin=0")


def test_what_cannot_be_compared_is_refused(several, place, script):
    pattern = f"{several}/elbert-*"
    for flags_given, words in (
        ([f"{pattern}x"], ("elbert-*x", "no folder matches")),
        ([pattern, "--figure", "a.jpg"], ("a.jpg", ".png, .pdf, .svg")),
        ([pattern, "--figure", "a.pdf", "--tables_only"], ("leave out --tables_only",)),
        ([pattern, "--pick", "max_cost=0.5"], ("without --model_dir",)),
        ([pattern, pattern], ("two models are called",)),
    ):
        script(sweep_exits.main, "--compare", *flags_given).refused(*words)
    say_training(several / "elbert-2", place, length=16)
    refusal = script(sweep_exits.main, "--compare", pattern)
    refusal.refused("elbert-2 with 16", "give the --max_seq_length")


@pytest.mark.parametrize("task", [pytest.param("rte", marks=pytest.mark.slow), "mnli", "sts-b"])
def test_all_of_it_works_for_every_kind_of_task(place, sweep, task):
    goal, grid = ("risk=0.7", "delta=0.5"), FEW
    if task == "sts-b":
        goal, grid = ("max_p95_ms=1000",), OF_VALUES
    if task == "mnli":
        goal = ("max_cost=0.9", "--metric_name", "balanced_accuracy")
    outcome = sweep(place, task, "--pick", *goal, "--compare", *grid).done()
    assert ("95% of the answers within 1000 ms" in outcome.out) == (task == "sts-b")
    model = place / "models" / task
    names = "all_logits.safetensors sweep.csv frontier.csv compare.md explorer.html".split()
    assert {*names} <= {path.name for path in (model / "sweep").iterdir()}
    assert (model / "sweep/frontier.png").read_bytes().startswith(b"\x89PNG")
    assert (model / "exit_config.json").exists()
    text = (model / "sweep/compare.md").read_text()
    assert text in outcome.out
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert {*rows} >= {"patience", "truncation", "random exits", "oracle", "full depth"}
    if task == "mnli":
        assert "100 × balanced_accuracy" in text
        assert "| balanced_accuracy, drop from full depth |" in outcome.out
        swept = rows_of(model / "sweep/sweep.csv")
        assert any(row["balanced_accuracy"] != row["acc"] for row in swept)


def test_all_of_it_works_for_ponder_models_too(ponder_place, sweep, glue):
    args = ("--compare", "--pick", "max_cost=0.7", "--batch_size", 1)
    sweep(ponder_place, "rte", *args, *THRESHOLDS).done()
    folder = ponder_place / "models/rte"
    assert (folder / "sweep/frontier.png").exists()
    picked = json.loads((folder / "exit_config.json").read_text())
    picked.pop("provenance")
    picked.pop("reference")
    rule = PonderAlbertConfig().exit_rules()[picked["exit_criteria"]]
    assert {*picked} == {"exit_criteria", *rule.reads}
    report = evaluated(glue, ponder_place, "rte", *PONDER)
    assert picked.items() <= report["rule"].items()
    assert report["computation_cost"] <= 0.85  # 0.7 on the calibration half
    edit_json(folder / "config.json", exit_criteria="expectation")
    ended = sweep(ponder_place, "rte", "--rules", "expectation")
    ended.refused("mixes the answers of all layers")
