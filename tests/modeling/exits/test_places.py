"""Exits at some layers only: as exits at all layers, of which the others are left out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from elbert import ElbertConfig, PonderAlbertConfig, UserError
from evaluation.metric import MetricAtCost
from evaluation.modes import MODES
from evaluation.predict import record_layers, run_all
from evaluation.sweep import Recording, configured_frontier, sweep
from exit_lab.learnt import fit_learnt
from exit_lab.stopping import fit_stopping
from glue.tasks import TASKS
from modeling.cpu_packing import packed_copy
from modeling.exits.rules import RULES
from modeling.rules import scan_answers
from tests.conftest import job_of, made_texts, random_ids, run_of, tiny_model
from tests.exit_lab.builders import made_recording

PLACES = [2, 3, 6]
ROWS = [place - 1 for place in PLACES]
SHAPE = {"num_hidden_layers": 6, "num_hidden_groups": 6, "num_exit_layers": 0, "num_labels": 3}
WINDOW = {"exit_thres": 0.7, "cnt_thres": 2, "exit_price": 1.0, "range_tmp": 0.5}
# Of rules under which these examples would all exit at one layer otherwise.
OTHERS = {
    "logits": {"exit_thres": 0.05},
    "max_prob": {"exit_thres": 0.3},
    "learnt": {"exit_thres": 0.3},
    "patience": {"cnt_thres": 1},
}
LEARNT = [[0.3 - 0.1 * layer, 0.8, 0.4] for layer in range(6)]
CALIBRATION = [[0.1 * layer, 1, 0.2, 0, -0.3, 0, 1.5, 0, 0, 0.1, 0.3, 0.6] for layer in range(6)]
THRESHOLDS = [0.5, 0.45, 0.4, 0.3, 0.35]


def keys_of(rows: list[int], is_recalibrated: bool) -> dict:
    """The keys with a row for each layer, of the layers in `rows`, counted from 0."""
    return {
        "learnt_weights": [LEARNT[row] for row in rows],
        "stopping_thresholds": [[0.0, *(THRESHOLDS[row] for row in rows[:-1])]],
        "exit_calibration": [CALIBRATION[row] for row in rows] if is_recalibrated else [],
    }


def twins(**keys) -> tuple:
    """A model with exits at all layers, and one of the same weights with those of PLACES."""
    every = tiny_model(**SHAPE, **keys)
    some = tiny_model(**SHAPE, **keys, exit_layers=PLACES)
    weights = every.state_dict()
    names = {f"exit_out_layers.{place}.": f"exit_out_layers.{ROWS[place]}." for place in range(3)}
    loaded = {}
    for name in some.state_dict():
        source = name
        for own, theirs in names.items():
            source = source.replace(own, theirs) if own in name else source
        loaded[name] = weights[source] if name != "exit_weights" else torch.zeros(2)
    some.load_state_dict(loaded)
    return every, some


@pytest.mark.parametrize("keep_head", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_other_exits_are_left_out_wherever_a_model_runs(name, keep_head):
    """Expected: the rule of a model of three layers, on the answers of three exits of six."""
    is_recalibrated = name in ("entropy", "optimal_stopping")
    setting = {"thres_name": name, **WINDOW, **OTHERS.get(name, {})}
    all_keys = keys_of(list(range(6)), is_recalibrated)
    every, some = twins(**setting, **all_keys, keep_head=keep_head)
    texts = made_texts(24)
    recorded = record_layers(job_of(every, texts))["all_logits"][ROWS]
    some_keys = keys_of(ROWS, is_recalibrated)
    short = ElbertConfig(num_hidden_layers=3, num_labels=3, **setting, **some_keys)
    answers, numbers = scan_answers(short.exit_rule(), {"all_logits": recorded})
    expected = torch.tensor(PLACES)[numbers - 1]
    assert len({*expected.tolist()}) > 1

    job = job_of(some, texts)
    of_some = record_layers(job)["all_logits"]
    torch.testing.assert_close(of_some[ROWS], recorded, atol=1e-5, rtol=1e-5)
    assert of_some[[0, 3, 4]].abs().max() == 0
    for size in (1, 5):  # alone, and in slots
        found = run_all(replace(job, batch_size=size), run_of(job))
        assert found["exit_layer"].tolist() == expected.tolist()
        torch.testing.assert_close(found["logits"], answers, atol=1e-5, rtol=1e-5)
    ids = random_ids(8, 7)
    for model in (some, packed_copy(some)):
        with torch.inference_mode():
            early, full = model(ids), model(ids, output_all_exits=True)
        assert early.exit_layer.tolist() == full.exit_layer.tolist()
        torch.testing.assert_close(early.logits, full.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weight_name", ["equal", "dyn"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_only_exits_have_a_loss(weight_name, share):
    no_dropout = {
        "classifier_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    _, some = twins(weight_name=weight_name, self_distillation=share, **no_dropout)
    ids, labels = random_ids(5, 6), torch.tensor([0, 1, 2, 1, 0])
    out = some.train()(ids, labels=labels)
    first, second, last = out.all_logits[ROWS].detach()
    losses = [F.cross_entropy(x, labels) for x in (first, second, last)]
    for n, exit_ in enumerate((first, second)):
        kl = F.kl_div(exit_.log_softmax(-1), last.softmax(-1), reduction="batchmean")
        losses[n] = (1 - share) * losses[n] + share * kl
    weights = (1, 1, 1) if weight_name == "equal" else (0.5, 0.5, 2)  # σ(0) is a half
    expected = sum(w * loss for w, loss in zip(weights, losses, strict=True))
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_shared_exit_is_computed_at_its_layers_alone():
    model = tiny_model(exit_layers=[2, 4], thres_name="entropy", exit_thres=0.0)
    calls = []
    model.albert.encoder.exit_out_layer.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        assert model(random_ids(1, 5)).exit_layer.item() == 4
    assert len(calls) == 2


@pytest.mark.parametrize(("classes", "task"), [(1, "sts-b"), (3, "mnli")])
def test_a_sweep_and_its_fits_are_those_of_the_exits_alone(classes, task):
    """Of the answers of three exits: fits have their numbers, costs are in layers that ran."""
    recording = made_recording(classes, layers=6, examples=120)
    costs = np.repeat(np.arange(1, 7)[:, None] / 6, 120, axis=1)
    recording = Recording(recording.tensors, recording.labels, costs)
    short = Recording(
        {name: x[ROWS] for name, x in recording.tensors.items() if name == "all_logits"},
        recording.labels,
        costs[ROWS],
    )
    rows, grid = np.arange(60), {"entropy": {"exit_thres": (0.2, 0.5, 0.8)}}
    grids = {"optimal_stopping": {"exit_price": (0.05, 0.2, 1.0)}, "learnt": grid["entropy"]}
    if classes > 1:
        grids |= grid
    swept = []
    for layers, exits, recorded in ((6, PLACES, recording), (3, [], short)):
        config = ElbertConfig(num_hidden_layers=layers, num_labels=classes, exit_layers=exits)
        config = fit_stopping(config, recorded, rows)
        config = fit_learnt(config, recorded, rows)
        swept.append(sweep(config, grids, recorded, TASKS[task]))
    found, expected = swept
    as_layers = np.array([0, *PLACES])
    assert found.exit_layer.tolist() == as_layers[expected.exit_layer].tolist()
    assert len(np.unique(found.exit_layer)) > 1
    assert found.cost(found.truncations).tolist() == pytest.approx(np.array([2, 2, 3, 3, 3, 6]) / 6)
    metrics = expected.main_metric(expected.truncations)[[0, 0, 1, 1, 1, 2]]
    assert found.main_metric(found.truncations).tolist() == metrics.tolist()
    assert found.oracle[[1, 2, 5]].tolist() == as_layers[expected.oracle].tolist()
    assert found.oracle[0].tolist() == [2] * 120


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"exit_layers": [2, 4]}, "num_hidden_layers = 6, which is the last of them"),
        ({"exit_layers": [4, 2, 6]}, "rising numbers"),
        ({"exit_layers": [2, 2, 6]}, "rising numbers"),
        ({"exit_layers": [0, 6]}, "rising numbers"),
        ({"exit_layers": [2, 7]}, "rising numbers"),
        ({"exit_layers": ["2", 6]}, "rising numbers"),
        ({"exit_layers": "2,6"}, "allowed is a list"),
        ({"exit_layers": [3, 6], "num_exit_layers": 3}, "1 to 2, the layers with an exit"),
        ({"exit_layers": [6], "keep_head": True}, "exits below the kept head"),
    ],
)
def test_places_that_cannot_be_are_refused(keys, words):
    with pytest.raises(UserError, match=words):
        ElbertConfig(num_hidden_layers=6, **keys)
    with pytest.raises(UserError, match=r"ponder_albert .* remove the key"):
        PonderAlbertConfig(exit_layers=[2, 6])


def test_a_table_of_layers_shows_the_newest_exit():
    """The frontier of a report, and the curve of a training, are of answers that are there."""
    job = job_of(tiny_model(exit_layers=[2, 4], thres_name="entropy"), made_texts())
    recorded = record_layers(job)
    curve = MODES["elbert"].evaluate_dev(job, MetricAtCost("acc")).line["eval_acc_per_layer"]
    assert curve[2] == curve[1]
    recording = Recording(dict(recorded), np.array(job.features.labels))
    points = configured_frontier(job.config, recording, TASKS["rte"])["acc"]
    assert all(cost >= 0.5 for cost, _ in points)
