"""A BERT's layers as one: what the student begins as, and what it follows."""

import pytest
import torch
from safetensors.torch import load_file
from scipy.linalg import svdvals

from elbert import UserError, load_pretrained
from tests.berts import assert_same_states, save, tiny_bert, tiny_encoder
from tests.models import padded_batch
from training.layer_sharing.run import DistillationLoss
from training.layer_sharing.student import shared_model
from training.layer_sharing.teacher import StateTeacher, followed_layers

PARTS = ("weight", "bias")


# What the student begins as.


@pytest.mark.parametrize(("initial_layer", "parts"), [(None, 1), (2, 1), (None, 2), (None, 3)])
def test_a_bert_of_equal_layers_is_its_student_before_training(initial_layer, parts, tmp_path):
    """Every state of HF's BERT, padding apart, and its pooled answer; also with a feed-forward
    block of several parts."""
    bert, inputs = tiny_bert(equal=True), padded_batch([12, 12, 7, 7])
    teacher, _ = load_pretrained(save(bert, tmp_path))
    student = shared_model(teacher, 3, 48 * parts, initial_layer).eval()
    wanted = bert(**inputs, output_hidden_states=True)
    found = student(**inputs, output_hidden_states=True)
    assert_same_states(found.hidden_states, wanted.hidden_states, inputs)
    torch.testing.assert_close(found.pooler_output, wanted.pooler_output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("layer", "width"), [(1, 48), (2, 48), (3, 48), (2, 96)])
def test_the_initial_layer_is_that_of_the_bert(layer, width, tmp_path):
    """One pass from the embeddings through a BERT whose first layer is that one."""
    bert = tiny_bert()
    teacher, _ = load_pretrained(save(bert, tmp_path))
    student = shared_model(teacher, 3, width, layer).eval()
    inputs = padded_batch([12, 12, 7, 7])
    bert.encoder.layer[0] = bert.encoder.layer[layer - 1]
    wanted = bert(**inputs, output_hidden_states=True).hidden_states[1]
    found = student(**inputs, output_hidden_states=True).hidden_states[1]
    assert_same_states([found], [wanted], inputs)


def test_corrections_of_full_rank_are_the_bert_itself(tmp_path):
    """Also saved, loaded as ELBERT, and with packed weights; the shared matrices are saved once."""
    bert, inputs = tiny_bert(), padded_batch([12, 12, 7, 7])
    teacher, _ = load_pretrained(save(bert, tmp_path / "bert"))
    student = shared_model(teacher, 3, rank=teacher.config.hidden_size).eval()
    wanted = bert(**inputs, output_hidden_states=True).hidden_states
    found = student(**inputs, output_hidden_states=True).hidden_states
    assert_same_states(found, wanted, inputs)
    student.save_pretrained(tmp_path / "student")
    following = StateTeacher(tmp_path / "student")
    assert_same_states(following.states(inputs), wanted, inputs)
    names = load_file(tmp_path / "student/model.safetensors")
    assert sum("ffn.parametrizations.weight.original" in name for name in names) == 1


@pytest.mark.parametrize("rank", [1, 4])
def test_corrections_begin_as_near_to_the_bert_as_their_rank_allows(rank, tmp_path):
    """By Eckart and Young: what is left of a matrix is its other singular values (SciPy's)."""
    bert = tiny_bert()
    teacher, _ = load_pretrained(save(bert, tmp_path))
    student = shared_model(teacher, 3, rank=rank)
    own = [layer.intermediate.dense.weight.detach() for layer in bert.encoder.layer]
    for matrix, group in zip(own, student.encoder.albert_layer_groups, strict=True):
        values = svdvals((matrix - torch.stack(own).mean(0)).numpy())
        left = matrix - group.albert_layers[0].ffn.weight
        assert left.square().sum().item() == pytest.approx((values[rank:] ** 2).sum(), rel=1e-4)


@pytest.mark.parametrize("family", ["bert", "electra", "mpnet"])
def test_the_teachers_states_are_hfs(family, tmp_path):
    bert, inputs = tiny_encoder(family), padded_batch([12, 12, 7, 7])
    teacher = StateTeacher(save(bert, tmp_path), 2)
    wanted = bert(**inputs, output_hidden_states=True).hidden_states
    assert_same_states(teacher.states(inputs), [wanted[0], wanted[2], wanted[3]], inputs)


# What it follows.


@pytest.mark.parametrize(
    ("passes", "layers", "wanted"),
    [
        (6, 6, [0, 1, 2, 3, 4, 5, 6]),
        (3, 6, [0, 2, 4, 6]),
        (4, 6, [0, 2, 3, 5, 6]),  # 1.5 → 2, 3, 4.5 → 5, 6
        (12, 6, [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]),
        (1, 12, [0, 12]),
    ],
)
def test_pass_k_follows_layer_round_k_L_over_N(passes, layers, wanted):
    assert followed_layers(passes, layers) == wanted


def test_the_loss_is_the_weighted_share_of_variance(tmp_path):
    """By hand: pass 3 weighs as much as passes 1 and 2, and padding counts nothing."""
    teacher, inputs = StateTeacher(save(tiny_bert(), tmp_path)), padded_batch([12, 12, 7, 7])
    student = shared_model(teacher.model, 3)
    targets, units = teacher.states(inputs), torch.tensor([1.0, 2.0, 3.0, 4.0])
    objective = DistillationLoss(student, units, torch.tensor([0, 0.25, 0.25, 0.5])).train()
    out = objective(**inputs, targets=targets)
    states = student.eval()(**inputs, output_hidden_states=True).hidden_states
    shares = []
    for state, target, unit in zip(states, targets, units, strict=True):
        places = inputs["attention_mask"].nonzero().tolist()
        rows = [(state[b, t] - target[b, t]).square().sum() for b, t in places]
        shares.append(sum(rows) / len(rows) / unit)
    assert out.loss.item() == pytest.approx(((shares[1] + shares[2] + 2 * shares[3]) / 4).item())
    assert out.sums["tokens"] == 38
    torch.testing.assert_close(out.sums["errors"] / 38 / units, torch.stack(shares))


def test_an_mpnet_is_no_teacher_of_a_shared_layer(tmp_path):
    """An ALBERT has no place for its attention bias, without which answers would mean nothing."""
    teacher, _ = load_pretrained(save(tiny_encoder("mpnet"), tmp_path))
    with pytest.raises(UserError, match="an MPNet's layers read the distance"):
        shared_model(teacher, 3)
