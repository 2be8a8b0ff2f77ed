"""The optimisers' parameter groups, their steps, and the schedule."""

import pytest
import torch
from transformers import MarkupLMConfig, MarkupLMForSequenceClassification

import elbert
from elbert import PonderAlbertClassifier, PonderAlbertConfig
from modeling.errors import UserError
from runs.settings import Schedule
from tests.berts import SIZES, save, tiny_encoder
from tests.conftest import TINY, tiny_model
from tests.general_encoders import save_with_tokenizer, tiny_classifier
from training.optimizer import clipped_parameters, make_optimizer, make_schedule


def optimiser_of(model, decay: float = 0.1) -> torch.optim.AdamW:
    training = Schedule(
        optimizer="adamw", learning_rate=1e-3, weight_decay=decay, adam_epsilon=1e-7
    )
    return make_optimizer(model, training)


@pytest.mark.parametrize(
    ("model", "own", "rate", "is_clipped"),
    [
        (tiny_model(w_lr=0.02, use_out_pooler=False, use_fc2=True), "exit_weights", 0.02, False),
        (PonderAlbertClassifier(PonderAlbertConfig(**TINY, lambda_lr=0.03)), "ponder.", 0.03, True),
        (PonderAlbertClassifier(PonderAlbertConfig(**TINY)), "ponder.", 1e-3, True),
        (
            tiny_model(exit_lr_factor=4.0, weight_name="equal", num_exit_layers=4),
            "albert.encoder.exit_out_layers.",
            4e-3,
            True,
        ),
    ],
    ids=["w_lr", "lambda_lr", "one rate", "exits"],
)
def test_every_parameter_has_its_rate_and_decay(model, own, rate, is_clipped):
    names = {id(p): n for n, p in model.named_parameters()}
    optimizer, found = optimiser_of(model), []
    for group in optimizer.param_groups:
        assert group["eps"] == 1e-7
        for name in (names[id(p)] for p in group["params"]):
            found.append(name)
            assert group["lr"] == (rate if name.startswith(own) else 1e-3)
            decays = name.endswith("weight") and "orm" not in name
            assert group["weight_decay"] == (0.1 if decays else 0), name
    assert sorted(found) == sorted(names.values())
    clipped = {names[id(p)] for p in clipped_parameters(optimizer)}
    assert clipped == {name for name in found if is_clipped or not name.startswith(own)}


# Of a family, how names of parameters begin, and the layer that they are of: 0 is below the first.
LAYERS_OF = {
    "mpnet": {
        "albert.embeddings.word_embeddings": 0,
        "albert.encoder.relative_attention_bias": 0,
        "albert.encoder.albert_layer_groups.0.": 1,
        "albert.encoder.albert_layer_groups.2.": 3,
    },
    "modernbert": {
        "albert.model.embeddings.tok_embeddings": 0,
        "albert.model.layers.0.": 1,
        "albert.model.layers.1.": 2,
        "albert.model.final_norm": 3,
    },
    "deberta-v2": {
        "albert.model.embeddings.word_embeddings": 0,
        "albert.model.encoder.rel_embeddings": 0,
        "albert.model.encoder.layer.1.": 2,
    },
    "markuplm": {
        "albert.model.embeddings.xpath_embeddings.xpath_tag_sub_embeddings.9.": 0,
        "albert.model.encoder.layer.2.": 3,
    },
}


@pytest.mark.parametrize("family", LAYERS_OF)
def test_each_layer_learns_at_a_multiple_of_the_next_ones_rate(family, tmp_path):
    """Clark et al. (2020): with 0.5 and three layers, a half, a quarter, and an eighth below."""
    layers = {"num_hidden_layers": 3}
    if family == "mpnet":
        folder = save(tiny_encoder(family, **layers), tmp_path)
    elif family == "markuplm":
        config = MarkupLMConfig(**SIZES, max_depth=12, xpath_unit_hidden_size=4)
        folder = save_with_tokenizer(MarkupLMForSequenceClassification(config), tmp_path)
    else:
        folder = save_with_tokenizer(tiny_classifier(family, **layers), tmp_path)
    model, _ = elbert.load_pretrained(folder, **elbert.recipe(), layer_lr_decay=0.5)
    rates = rates_by_name(model)
    for beginning, layer in LAYERS_OF[family].items():
        found = {rate for name, rate in rates.items() if name.startswith(beginning)}
        assert found == {(1e-4, 2e-4, 4e-4, 8e-4)[layer]}, beginning
    assert {rate for name, rate in rates.items() if ".exit_out_" in name} == {4 * 8e-4}


def test_peft_s_names_have_the_same_rates():
    peft = pytest.importorskip("peft")
    keys = elbert.recipe() | {"num_hidden_groups": 4, "layer_lr_decay": 0.5}
    wrapped = peft.get_peft_model(
        tiny_model(**keys), peft.LoraConfig(target_modules=["query"], modules_to_save=["pooler"])
    )
    rates = rates_by_name(wrapped)
    for name, rate in rates.items():
        if ".lora_" in name:
            layer = int(name.partition("albert_layer_groups.")[2][0])
            assert rate == (1e-4, 2e-4, 4e-4, 8e-4)[layer]
        if ".exit_out_" in name:
            assert rate == 4 * 8e-4


def rates_by_name(model: torch.nn.Module) -> dict[str, float]:
    """The learning rate of each parameter, of a rate of 8e-4; every one is in one group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {}
    for group in elbert.parameter_groups(model, learning_rate=8e-4):
        rates |= {names.pop(id(parameter)): group["lr"] for parameter in group["params"]}
    assert not names
    return rates


def test_layers_that_share_their_weights_have_one_rate():
    refused = r"layer_lr_decay = 0\.5: allowed is 1, since"
    with pytest.raises(UserError, match=refused):
        tiny_model(layer_lr_decay=0.5)
    with pytest.raises(UserError, match=refused):
        tiny_model(layer_lr_decay=0.5, num_hidden_groups=4, correction_rank=2)


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


def published_lamb(parameter, gradients, rate, decay, trusts):
    """You et al. (2020), version 3, as ALBERT's and the adaptive ALBERT's code has it: no
    correction of the moments, decay within the update, trust ratio ‖w‖ / ‖update‖ for some."""
    mean = square = torch.zeros_like(parameter)
    for gradient in gradients:
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        update = mean / (square.sqrt() + 1e-6) + decay * parameter
        ratio = parameter.norm() / update.norm() if trusts and parameter.norm() else 1.0
        parameter = parameter - rate * ratio * update
    return parameter


def test_lamb_is_the_published_one():
    """Of a matrix of large norm, a layer norm, and a bias that has to change its sign."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {"dense": torch.nn.Linear(40, 30), "LayerNorm": torch.nn.LayerNorm(8)}
    )
    model.config = None
    torch.nn.init.normal_(model["dense"].weight)  # norm 35
    torch.nn.init.constant_(model["dense"].bias, -0.01)
    training = Schedule(optimizer="lamb", learning_rate=2e-3, weight_decay=0.01, adam_epsilon=1e-6)
    optimizer = make_optimizer(model, training)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = {name: torch.randn(30, *p.shape) * 0.01 - 0.02 for name, p in start.items()}
    for step in range(30):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name][step].clone()
        optimizer.step()
    for name, parameter in model.named_parameters():
        matrix = name == "dense.weight"
        decay = 0.01 if matrix else 0.0
        expected = published_lamb(start[name], gradients[name], 2e-3, decay, trusts=matrix)
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-5, rtol=1e-5)
    assert (model["dense"].bias > 0).all()
