"""Class weights: what they do to the losses of all modes, and scikit-learn's numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from elbert import ElbertConfig
from evaluation.modes import MODELS
from glue.splits import read_examples
from glue.tasks import get_task
from modeling.files import read_json
from modeling.losses import distillation_loss
from tests.conftest import RTE_LABELS
from tests.models import SMALL
from training.class_weights import class_weights

# Of each mode of the project: without the parts of its loss that have no labels.
LABELS_ALONE = {"elbert": {}, "ponder_albert": {"kl_penalty_factor": 0}, "albert_act": {"tau": 0}}


@pytest.mark.parametrize(
    "kind", [kind for kind in MODELS if kind.config_class.model_type in LABELS_ALONE]
)
def test_a_weight_of_3_counts_as_three_such_examples(kind):
    own = LABELS_ALONE[kind.config_class.model_type]
    model = kind(kind.config_class(**SMALL, classifier_dropout_prob=0, **own)).train()
    ids, labels = torch.arange(8, 40).view(4, 8), torch.tensor([0, 1, 1, 0])
    often = torch.tensor([0, 1, 1, 1, 2, 2, 2, 3])
    with torch.no_grad():
        repeated = model(ids[often], labels=labels[often]).loss * len(often) / len(ids)
        model.class_weights = torch.tensor([1.0, 3.0])
        torch.testing.assert_close(model(ids, labels=labels).loss, repeated)


def test_only_the_labels_part_of_a_distillation_loss_has_weights():
    logits, teacher = torch.randn(4, 2), torch.randn(4, 2)
    given = logits, torch.tensor([0, 0, 0, 1]), teacher
    for share, ratio in ((0.0, 2.0), (1.0, 1.0)):
        config = ElbertConfig(teacher_share=share)
        weighted = distillation_loss(*given, config, torch.tensor([2.0, 2.0]))
        torch.testing.assert_close(weighted, ratio * distillation_loss(*given, config))


def test_balanced_weights_are_scikit_learns_and_stay_on_record(glue, rte, tmp_path):
    few = ("--max_train_samples", 5, "--do_train", "--class_weights")
    glue(tmp_path / "out", *few, "balanced").done()
    labels = [x.label for x in read_examples(get_task("rte"), rte, "train", 5)]
    expected = compute_class_weight("balanced", classes=np.arange(2), y=labels)
    found = read_json(tmp_path / "out/training.json")["class_weights"]
    assert found == dict(zip(RTE_LABELS, expected, strict=True))
    assert found["entailment"] < 1 < found["not_entailment"]
    for wrong in (["1"], ["1", "0"], ["1", "nan"], ["balanced", "1"]):
        refused = glue(tmp_path / "new", *few, *wrong)
        refused.refused("for each of the classes entailment, not_entailment")
        assert "Total optimization steps" not in refused.out  # before the work
    glue(tmp_path / "new", "--do_train", "--max_train_samples", 1, "--class_weights", "balanced"
    ).refused("no training example is 'not_entailment'")  # fmt: skip


def test_a_label_that_every_example_has_keeps_weight_1():
    """Of four examples one has the first label, three the second and all the third."""
    labels = np.array([[1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 0, 1]])
    task = replace(get_task("rte"), labels=("a", "b", "c"), multi_label=True)
    assert class_weights(["balanced"], task, labels) == {
        "a": 3.0,
        "b": pytest.approx(1 / 3),
        "c": 1.0,
    }
