"""What the models of all three modes promise alike."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from elbert import AlbertActForSequenceClassification, UserError
from modeling.exits.rules import RULES
from modeling.keys import POOLER_INPUTS
from tests.conftest import tiny_model
from tests.modeling.exits.test_rules import CALIBRATIONS
from tests.models import (
    one_of,
    padded_batch,
    ponder_batch,
    tiny_act,
    tiny_ponder,
)

Inputs = dict[str, torch.Tensor]


seeds = st.integers(0, 1000)


@st.composite
def elberts(draw) -> torch.nn.Module:
    shape = {
        "num_hidden_layers": draw(st.integers(1, 6)),
        "inner_group_num": draw(st.integers(1, 2)),
        "pooler_input": draw(st.sampled_from(POOLER_INPUTS)),
        "use_out_pooler": draw(st.booleans()),
        "use_fc2": draw(st.booleans()),
        "fc_size1": draw(st.sampled_from([8, 32])),
        "fc_size2": 12,
        "num_labels": draw(st.integers(1, 3)),
        "thres_name": draw(st.sampled_from(list(RULES))),
        "exit_thres": draw(st.sampled_from([0.0, 0.3, 0.6, 0.8, 0.9, 0.95])),
        "margin": draw(st.sampled_from([0.0, 0.1])),
        "range_tmp": draw(st.sampled_from([0.1, 1.0])),
        "window_score": draw(st.sampled_from(["lead", "class0"])),
        "learnt_weights": [[0.3, 0.8, 0.4], [-0.2, 1.0, 0.3]],
        "stopping_thresholds": [[0.0, 0.3, 0.5], [0.5, 0.6, 0.6]],
        "positions_skip_padding": draw(st.booleans()),
        "relative_attention_num_buckets": draw(st.sampled_from([None, 32])),
        "pad_token_id": draw(st.integers(0, 3)),
    }
    for name in ("num_exit_layers", "num_hidden_groups", "cnt_thres"):
        shape[name] = draw(st.integers(1, shape["num_hidden_layers"]))
    if draw(st.booleans()):
        shape["exit_calibration"] = CALIBRATIONS[shape["num_labels"]]
    layers_below = shape["num_hidden_layers"] - 1
    if layers_below and draw(st.booleans()):
        activation = draw(st.sampled_from(["tanh", "gelu", "relu"]))
        exits = min(shape["num_exit_layers"], layers_below)
        shape |= {"keep_head": True, "head_activation": activation, "num_exit_layers": exits}
    if draw(st.booleans()):
        last = shape["num_hidden_layers"]
        others = draw(st.sets(st.integers(1, last)))
        shape["exit_layers"] = sorted(others | {1, last})
        shape["num_exit_layers"] = 1
    return tiny_model(draw(seeds), **shape)


@st.composite
def ponder_models(draw) -> torch.nn.Module:
    return tiny_ponder(
        draw(seeds),
        exit_criteria=draw(st.sampled_from(["sample", "threshold", "expectation"])),
        lambda_layer_arch=draw(st.sampled_from(["mlp", "linear", "linear_cat", "linear_diff"])),
    )


@st.composite
def act_models(draw) -> torch.nn.Module:
    model = tiny_act(draw(seeds))
    model.encoder.compact = draw(st.booleans())
    return model


MODELS = {"elbert": elberts(), "ponder": ponder_models(), "act": act_models()}


def padded(batch: Inputs, width: int, seed: int) -> Inputs:
    """The batch at this width, with arbitrary ids and segments under the padding."""
    generator = torch.Generator().manual_seed(seed)
    padded_inputs = {}
    for name, tensor in batch.items():
        padded_inputs[name] = F.pad(tensor, (0, width - tensor.shape[1]))
    for name, end in (("input_ids", 40), ("token_type_ids", 2)):
        noise = torch.randint(end, padded_inputs[name].shape, generator=generator)
        padded_inputs[name] = padded_inputs[name].where(padded_inputs["attention_mask"] == 1, noise)
    return padded_inputs


def answer_to(out: object, row: int, length: int) -> tuple[torch.Tensor, ...]:
    """All that a model says of an example, or of its tokens."""
    if hasattr(out, "updates"):
        states, updates = out.last_hidden_state[row, :length], out.updates[row, 0, 0, :length]
        return states, updates, out.ponder_cost[row]
    return (out.answer if hasattr(out, "answer") else out.logits)[row], out.exit_layer[row]


@pytest.mark.parametrize("mode", MODELS)
@given(
    data=st.data(),
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=9),
    extra=st.integers(0, 8),
    seed=seeds,
)
def test_an_answer_depends_on_neither_the_batch_nor_its_padding(mode, data, lengths, extra, seed):
    model = data.draw(MODELS[mode])
    kinds = [{}, {"output_all_exits": True}]  # of calls
    own_inputs = [{} for _ in lengths]  # of each example alone
    tolerance = 1e-5  # of a value, and of values above 1 in proportion: float32 has 24 bits
    if mode == "act":
        kinds = [{}]
        tolerance = 1e-10  # its models are in float64
    if mode == "ponder":
        lengths = [max(length, 2) for length in lengths]  # two [CLS]
        draws = torch.rand(len(lengths), generator=torch.Generator().manual_seed(seed))
        kinds = [{**kind, "draws": draws} for kind in kinds]
        own_inputs = [{"draws": draw[None]} for draw in draws]
        batch = ponder_batch(lengths, seed)
    else:
        batch = padded_batch(lengths, seed)
    width = min(24, max(lengths) + extra)
    with torch.no_grad():
        together = [model(**padded(batch, width, seed + i), **kind) for i, kind in enumerate(kinds)]
        for row, length in enumerate(lengths):
            alone = answer_to(model(**one_of(batch, row), **own_inputs[row]), 0, length)
            for out in together:
                answer = answer_to(out, row, length)
                torch.testing.assert_close(answer, alone, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "model",
    [
        tiny_model(thres_name="entropy", exit_thres=0.9),
        tiny_ponder(exit_criteria="threshold", exit_thres=0.3),
    ],
    ids=["elbert", "ponder"],
)
def test_examples_that_have_left_take_no_more_layer_passes(model):
    rows = []
    (group,) = (x for x in model.modules() if isinstance(x, GradientCheckpointingLayer))
    group.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    with torch.no_grad():
        exits = model(**ponder_batch([5, 9, 12, 7, 6, 11, 3, 8])).exit_layer
    assert len(set(exits.tolist())) > 1
    assert sum(rows) == exits.sum().item() < 8 * model.config.num_hidden_layers


# A model, the key that decides its depth, and that key's values for deep and for shallow answers.
CASES = {
    "elbert": (
        lambda: tiny_model(thres_name="entropy", classifier_dropout_prob=0.0),
        "exit_thres",
        (0.0, 1.0),
    ),
    "ponder": (lambda: tiny_ponder(exit_criteria="threshold"), "exit_thres", (1.0, 0.0)),
    "act": (
        lambda: tiny_act(14, AlbertActForSequenceClassification).float(),
        "act_epsilon",
        (0.001, 0.999),
    ),
}


@pytest.mark.parametrize(("make", "key", "values"), CASES.values(), ids=CASES)
def test_the_configuration_is_read_and_checked_at_every_call(make, key, values):
    model, layers = make(), []
    for value in values:
        setattr(model.config, key, value)
        with torch.no_grad():
            out = model(**ponder_batch([9, 5]))
        layers.append((out.updates if "updates" in out else out.exit_layer).max())
    assert layers[0] > layers[1]
    setattr(model.config, key, 7.0)
    with pytest.raises(UserError, match=f"{key} = 7"):
        model(**ponder_batch([9, 5]))


every_mode = pytest.mark.parametrize("make", [make for make, _, _ in CASES.values()], ids=CASES)


@every_mode
def test_gradient_checkpointing_changes_no_gradient(make):
    gradients = []
    for checkpointing in (False, True):
        model = make().train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(**ponder_batch([9, 5]), labels=torch.tensor([0, 1])).loss.backward()
        gradients.append({name: x.grad for name, x in model.named_parameters()})
    assert all(gradient is not None for gradient in gradients[0].values())
    torch.testing.assert_close(*gradients)


@every_mode
def test_a_text_of_more_tokens_than_positions_is_refused_with_both_numbers(make):
    model = make()
    longest = model.config.max_position_embeddings
    assert isinstance(model(**ponder_batch([longest] * 2), return_dict=False), tuple)
    words = rf"^a text has {longest + 1} tokens.* max_position_embeddings = {longest};"
    with pytest.raises(UserError, match=words):
        model(**ponder_batch([longest + 1] * 2))
