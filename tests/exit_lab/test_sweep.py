"""Sweeps against single scans, the golden vectors, and windows worked out by hand."""

import numpy as np
import pytest
import torch

from exit_lab.grids import RuleGrid
from exit_lab.sweep import Recording, sweep
from glue.tasks import TASKS
from modeling.rules import scan
from tests.exit_lab.builders import ELBERT, swept
from tests.golden_vectors import load_golden


@pytest.mark.parametrize(("classes", "task"), [(2, "rte"), (3, "mnli"), (1, "sts-b")])
def test_a_sweep_scans_each_setting_as_if_alone(classes, task):
    found, recording = swept(classes, task)
    assert len(found.settings) == sum(len(grid) for grid in found.grids) == len(found.exit_layer)
    for setting, exits in zip(found.settings, found.exit_layer, strict=True):
        alone = scan(ELBERT.rule(setting, recording.tensors), recording.tensors)
        assert np.array_equal(exits, alone.numpy()), setting


@pytest.mark.parametrize("name", ["elbert_cls", "elbert_three_way"])
def test_a_sweep_holds_all_published_runs(name):
    text, _, tensors = load_golden(name)
    classes = tensors["all_logits"].shape[-1]
    recording = Recording({"all_logits": tensors["all_logits"]}, tensors["labels"].numpy())
    runs = [run for run in text["runs"] if run["thres_name"] != "patience"]
    keys = {name: rule.reads for name, rule in ELBERT.rules(False).items()}
    values = {
        key: tuple(sorted({run[key] for run in runs}))
        for key in ("exit_thres", "cnt_thres", "margin", "range_tmp")
    }
    rules = sorted({run["thres_name"] for run in runs})
    grids = [
        RuleGrid(rule, {key: values[key] for key in keys[rule]}, {"window_score": "class0"})
        for rule in rules
    ]
    found = sweep(ELBERT, grids, recording, TASKS["mnli" if classes == 3 else "rte"])
    for k, run in enumerate(text["runs"]):
        rule = run["thres_name"]
        if rule not in rules:
            continue
        number = found.settings.index({"thres_name": rule, **{key: run[key] for key in keys[rule]}})
        expected = (tensors[f"run{k}.exit_idx"] + 1).numpy()
        assert np.array_equal(found.exit_layer[number], expected), run
        cost = found.cost(found.exit_layer[number][None])[0]
        assert cost == pytest.approx(run["compute_ratio"], abs=1e-6)


# One example whose class-0 probability is 0.5, 0.7, 0.7, 0.7, 0.99 by layer.
def test_the_window_that_ended_a_pass_is_told():
    logits = torch.tensor([0.5, 0.7, 0.7, 0.7, 0.99]).logit()
    logits = torch.stack((logits, torch.zeros(5)), -1)[:, None]
    tensors = {"all_logits": logits}

    def by_window(name: str, **keys) -> bool:
        rule = ELBERT.rule({"thres_name": name, **keys}, tensors)
        (layer,) = scan(rule, tensors)
        return bool(rule.ends_by_window(logits[layer - 1].softmax(-1))[0])

    assert by_window("bias_1", exit_thres=0.1, cnt_thres=3, margin=0.0)
    assert not by_window("bias_1", exit_thres=0.1, cnt_thres=5, margin=0.0)  # layer 5, by entropy
    assert by_window("bias_1", exit_thres=0.0, cnt_thres=4, margin=0.0)  # at the last layer
    assert by_window("patience", cnt_thres=2)
    assert not by_window("entropy", exit_thres=0.5)
