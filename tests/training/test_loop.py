"""Optimiser, schedule and whole checkpoints."""

import math
import os
import resource
import signal
from contextlib import contextmanager

import pytest
import torch

from modeling import (
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    PonderAlbertConfig,
    UserError,
    load_tokenizer,
)
from tests.conftest import TINY, contents, random_ids, tiny_model
from training.checkpoints import (
    begin_training,
    check_finished,
    checkpoints_of,
    finish_training,
    latest_checkpoint,
    save_model,
)
from training.loop import check_loss
from training.optimizer import clipped_parameters, make_optimizer, make_schedule


def optimiser_of(model, decay: float = 0.1) -> torch.optim.AdamW:
    return make_optimizer(model, learning_rate=1e-3, weight_decay=decay, adam_epsilon=1e-7)


def test_every_parameter_is_in_the_group_that_it_belongs_to():
    model = tiny_model(w_lr=0.02, use_out_pooler=False, use_fc2=True)
    names = {id(p): name for name, p in model.named_parameters()}
    decay, plain, own = optimiser_of(model).param_groups
    groups = [{names[id(p)] for p in group["params"]} for group in (decay, plain, own)]
    assert groups[2] == {"exit_weights"}
    norms = {n for n in names.values() if "LayerNorm" in n or "layer_norm" in n}
    biases = {n for n in names.values() if n.endswith("bias")}
    assert groups[1] == biases | norms
    assert groups[0] == set(names.values()) - biases - norms - {"exit_weights"}
    assert [g["weight_decay"] for g in (decay, plain, own)] == [0.1, 0, 0]
    assert [g["lr"] for g in (decay, plain, own)] == [1e-3, 1e-3, 0.02]
    assert all(g["eps"] == 1e-7 for g in (decay, plain, own))


def test_a_halting_head_has_its_own_learning_rate_where_the_configuration_has_one():
    config = PonderAlbertConfig(**TINY, lambda_lr=0.03)
    model = PonderAlbertClassifier(config)
    names = {id(p): name for name, p in model.named_parameters()}
    head = {name for name in names.values() if name.startswith("ponder.")}
    optimizer = optimiser_of(model)
    groups = [{names[id(p)] for p in group["params"]} for group in optimizer.param_groups]
    assert set.union(*groups) == set(names.values())
    for group, parameters in zip(optimizer.param_groups, groups, strict=True):
        inside = bool(parameters & head)
        assert group["lr"] == (0.03 if inside else 1e-3)
        assert parameters <= head if inside else not parameters & head
        decays = {name.endswith("weight") and "orm" not in name for name in parameters}
        assert decays == {group["weight_decay"] > 0}
    assert len(clipped_parameters(optimizer)) == len(names)
    schedule = make_schedule(optimizer, warmup_steps=2, total_steps=6)
    optimizer.step()
    schedule.step()
    assert sorted(set(schedule.get_last_lr())) == pytest.approx([0.5e-3, 0.015])
    config.lambda_lr = None
    assert [g["lr"] for g in optimiser_of(model).param_groups] == [1e-3, 1e-3]


def test_clipping_sees_all_but_w():
    model = tiny_model()
    clipped = {id(p) for p in clipped_parameters(optimiser_of(model))}
    assert clipped == {id(p) for n, p in model.named_parameters() if n != "exit_weights"}
    equal = tiny_model(weight_name="equal")
    assert len(clipped_parameters(optimiser_of(equal))) == len(list(equal.parameters()))


def test_the_schedule_warms_up_and_decays_and_w_stays_constant():
    optimizer = optimiser_of(tiny_model(w_lr=0.02))
    schedule = make_schedule(optimizer, warmup_steps=2, total_steps=6)
    rates = []
    for _ in range(7):
        rates.append(schedule.get_last_lr())
        optimizer.step()
        schedule.step()
    factors = [0, 0.5, 1, 0.75, 0.5, 0.25, 0]
    for column in (0, 1):
        assert [r[column] for r in rates] == pytest.approx([1e-3 * f for f in factors])
    assert [r[2] for r in rates] == [0.02] * 7


def test_one_step_moves_what_it_should():
    """AdamW's first step is lr·sign(gradient): W by w_lr, the rest by the learning rate."""
    model = tiny_model(w_lr=0.02, classifier_dropout_prob=0.0).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = optimiser_of(model, decay=0.0)
    model(random_ids(4, 6), labels=torch.tensor([0, 1, 0, 1])).loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        gradient, moved = gradients[name], parameter.detach() - before[name]
        assert gradient is not None, name
        clear = gradient.abs() > 1e-3
        rate = 0.02 if name == "exit_weights" else 1e-3
        torch.testing.assert_close(
            moved[clear], -rate * gradient[clear].sign(), atol=1e-5, rtol=1e-2
        )
        assert (moved[gradient == 0] == 0).all(), name
    assert (gradients["exit_weights"].abs() > 1e-3).any()


def test_w_learns_to_weigh_down_the_worse_exits():
    """dL/dWᵢ = σ′(Wᵢ)·(Lᵢ − L_N)."""
    model = tiny_model(classifier_dropout_prob=0.0).train()
    labels = torch.tensor([0, 1, 0, 1])
    out = model(random_ids(4, 6), labels=labels)
    out.loss.backward()
    losses = [torch.nn.functional.cross_entropy(x, labels).item() for x in out.all_logits]
    slope = math.exp(-4) / (1 + math.exp(-4)) ** 2
    expected = [slope * (loss - losses[-1]) for loss in losses[:-1]]
    assert model.exit_weights.grad.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_names_step_rate_and_checkpoint(loss, tmp_path):
    check_loss(1.0, 7, 3e-5, tmp_path)
    with pytest.raises(UserError, match=r"at step 7 .*3e-05.*No checkpoint"):
        check_loss(loss, 7, 3e-5, tmp_path)
    for name in ("checkpoint-5", "checkpoint-10", "checkpoint-best", "checkpoint-20"):
        (tmp_path / name).mkdir()
        if name != "checkpoint-20":  # a save that was cut short
            (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"last good checkpoint is .*checkpoint-10\."):
        check_loss(loss, 12, 3e-5, tmp_path)
    assert latest_checkpoint(tmp_path).name == "checkpoint-10"
    assert {path.name for path in checkpoints_of(tmp_path)} == {"checkpoint-5", "checkpoint-10"}


@pytest.fixture
def tokenizer(albert_dir):
    return load_tokenizer(albert_dir)


def test_saving_replaces_a_model_whole(tmp_path, tokenizer):
    target = tmp_path / "out"
    save_model(target, tiny_model(1), tokenizer)
    (target / "notes.txt").write_text("mine")
    save_model(target, tiny_model(2), tokenizer)
    loaded = ElbertForSequenceClassification.from_pretrained(target)
    expected = tiny_model(2).state_dict()
    assert all(torch.equal(expected[k], v) for k, v in loaded.state_dict().items())
    assert (target / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_saved_files_have_the_permissions_that_the_umask_leaves(tmp_path, tokenizer, umask, mode):
    """safetensors makes its files private, which a model that others are to load is not."""
    before = os.umask(umask)
    try:
        save_model(tmp_path / "out", tiny_model(), tokenizer)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in modes
    assert set(modes.values()) == {mode}, modes


@contextmanager
def no_file_above(size: int):
    """What a full disk does: writing past `size` bytes fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("room", [0, 500, 3000, 20_000])
def test_a_failed_save_leaves_the_previous_checkpoint(tmp_path, tokenizer, room):
    target = tmp_path / "out"
    save_model(target, tiny_model(1), tokenizer)
    before = contents(target)
    with no_file_above(room), pytest.raises(UserError, match="cannot write"):
        save_model(target, tiny_model(2), tokenizer)
    assert contents(target) == before
    with no_file_above(room), pytest.raises(UserError, match="cannot write"):
        save_model(tmp_path / "new", tiny_model(2), tokenizer)
    assert os.listdir(tmp_path) == ["out"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path, tokenizer):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/out"):
        save_model(tmp_path / "file/out", tiny_model(), tokenizer)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_never_saved(tmp_path, tokenizer, value):
    """A gradient can overflow under a finite loss; the next loss comes after the next save."""
    model = tiny_model()
    with torch.no_grad():
        model.albert.pooler.weight[0, 0] = value
    with pytest.raises(UserError, match=r"not finite.*--learning_rate"):
        save_model(tmp_path / "checkpoint-1", model, tokenizer)
    assert os.listdir(tmp_path) == []


def test_unfinished_training_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no trained model.*--do_train"):
        check_finished(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    check_finished(tmp_path)
    begin_training(tmp_path, {"learning_rate": 1e-5})
    with pytest.raises(UserError, match=r"did not finish.*--overwrite_output_dir"):
        check_finished(tmp_path)
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5/config.json").write_text("{}")
    with pytest.raises(UserError, match="checkpoint-5"):
        check_finished(tmp_path)
    finish_training(tmp_path)
    check_finished(tmp_path)
