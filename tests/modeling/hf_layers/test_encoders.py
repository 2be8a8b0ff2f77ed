"""Encoders that run by transformers' own layers, against transformers' own forward."""

import json
import re

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, AutoModelForSequenceClassification

from elbert import (
    DepthBatcher,
    ElbertConfig,
    ElbertForSequenceClassification as Elbert,
    UserError,
    cast_layers,
    graphed_copy,
    load_model,
    load_pretrained,
    packed_copy,
    summary,
)
from modeling.hf_layers.configs import as_elbert
from modeling.keys import RECIPES
from tests.conftest import edit_json, random_ids
from tests.general_encoders import ENCODERS, SIZES, tiny_classifier
from tests.models import assert_near, hidden_states, mask_of

ADD_EXITS = RECIPES["add_exits"]["elbert"]
LENGTHS = [12, 4, 9, 12, 1, 7]
MASK = mask_of(LENGTHS)
IDS = random_ids(len(LENGTHS), max(LENGTHS)) * MASK

each_encoder = pytest.mark.parametrize("model_type", ENCODERS)


@pytest.fixture
def with_exits(model_type, tmp_path):
    """transformers' classifier, and the model that keeps its head, with exits that differ."""
    twin = tiny_classifier(model_type)
    twin.save_pretrained(tmp_path / "hf")
    torch.manual_seed(3)
    model, report = load_pretrained(tmp_path / "hf", **ADD_EXITS)
    assert not report.ignored
    assert all(".exit_out_layers." in name or name == "exit_weights" for name in report.initialised)
    with torch.no_grad():
        for head in model.albert.encoder.exit_out_layers:
            head.classifier.weight.normal_(0, 1)
    return twin, model.eval()


def thresholds_of(model) -> list[float]:
    """Some at which examples exit after different layers."""
    with torch.no_grad():
        logits = model(IDS, MASK, output_all_exits=True).all_logits
    probabilities = logits.softmax(-1)
    entropies = torch.special.entr(probabilities).sum(-1) / torch.tensor(3.0).log()
    return entropies[:-1].flatten().quantile(torch.tensor([0.02, 0.06, 0.12, 0.4])).tolist()


@each_encoder
def test_with_all_layers_a_kept_head_answers_to_the_last_bit(with_exits):
    twin, model = with_exits
    model.config.exit_thres = 0.0
    with torch.no_grad():
        for mask in (MASK, None):
            out = model(IDS, mask)
            assert out.exit_layer.tolist() == [4] * len(LENGTHS)
            assert torch.equal(out.logits, twin(IDS, mask).logits)
            every = model(IDS, mask, output_all_exits=True).all_logits
            assert torch.equal(every[-1], twin(IDS, mask).logits)


@each_encoder
def test_layers_are_transformers_and_exits_read_what_the_final_norm_makes(with_exits):
    twin, model = with_exits
    with torch.no_grad():
        expected = twin(IDS, MASK, output_hidden_states=True).hidden_states
        finished = [model.albert.finish(states) for states in hidden_states(model, IDS, MASK)]
    real = MASK.bool()
    # transformers puts the norm behind the last layer alone.
    norm = getattr(twin.base_model, "final_norm", torch.nn.Identity())
    for ours, theirs in zip(finished[1:-1], expected[1:-1], strict=True):
        assert_near(ours[real], norm(theirs)[real].detach())
    assert_near(finished[-1][real], expected[-1][real])


@each_encoder
def test_an_answer_does_not_depend_on_who_shares_its_batch_or_slots(with_exits):
    _, model = with_exits
    layers = set()
    for threshold in thresholds_of(model):
        model.config.exit_thres = threshold
        with torch.inference_mode():
            batch = model(IDS, MASK)
            layers |= {*batch.exit_layer.tolist()}
            for row, length in enumerate(LENGTHS):
                alone = model(IDS[row : row + 1, :length])
                assert alone.exit_layer[0] == batch.exit_layer[row]
                assert_near(alone.logits[0], batch.logits[row])
        batcher = DepthBatcher(model, slots=3, window=4)
        batcher.submit(
            (IDS[row, :length], torch.zeros(length)) for row, length in enumerate(LENGTHS)
        )
        answers = sorted(batcher.answers())
        assert [answer.exit_layer for answer in answers] == batch.exit_layer.tolist()
        assert_near(torch.stack([answer.logits for answer in answers]), batch.logits)
    assert len(layers) > 1  # not all at one


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each_encoder
def test_on_a_gpu_all_exit_as_on_a_cpu(with_exits):
    """Also as a graphed copy, which runs transformers' layers as they are."""
    _, model = with_exits
    model.config.exit_thres = thresholds_of(model)[2]
    with torch.inference_mode():
        expected = model(IDS, MASK)
        for there in (model.cuda(), graphed_copy(model)):
            found = there(IDS.cuda(), MASK.cuda())
            assert found.exit_layer.tolist() == expected.exit_layer.tolist()
            assert_near(found.logits.cpu(), expected.logits, 1e-4)


@each_encoder
def test_a_trained_folder_loads_by_both_libraries(with_exits, tmp_path):
    _, model = with_exits
    model.save_pretrained(tmp_path / "saved")
    by_transformers = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    by_suite, report = load_model(Elbert, tmp_path / "saved")
    assert not report.ignored + report.initialised
    model.config.exit_thres = by_transformers.config.exit_thres
    with torch.no_grad():
        expected = model(IDS, MASK)
        for twin in (by_transformers, by_suite.eval()):
            assert_near(twin(IDS, MASK).logits, expected.logits)


@each_encoder
def test_gradients_are_those_of_transformers(with_exits):
    twin, model = with_exits
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    twin(IDS, MASK).logits[:, 1].sum().backward()
    model(IDS, MASK, output_all_exits=True).all_logits[-1][:, 1].sum().backward()
    theirs = dict(twin.base_model.named_parameters())
    for name, parameter in model.albert.model.named_parameters():
        assert_near(parameter.grad, theirs[name].grad, 1e-4)
    loss = model.train()(IDS, MASK, labels=labels).loss
    assert loss.isfinite()


def test_weights_that_are_not_the_configurations_are_refused(tmp_path):
    tiny_classifier("modernbert").save_pretrained(tmp_path)
    for key, value, message in (
        ("num_hidden_layers", 2, "no place for"),
        ("intermediate_size", 40, "has shape"),
        ("num_hidden_layers", 6, "no weights for"),
        ("hidden_size", 30, "hidden size"),
    ):
        edit_json(tmp_path / "config.json", **{key: value, "layer_types": None})
        with pytest.raises(UserError, match=message):
            load_pretrained(tmp_path)
        edit_json(tmp_path / "config.json", num_hidden_layers=4, intermediate_size=48)


def test_a_classifier_without_a_head_of_these_labels_keeps_none(tmp_path):
    tiny_classifier("modernbert").base_model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="this folder has none"):
        load_pretrained(tmp_path, **ADD_EXITS, num_labels=3)


@each_encoder
def test_in_bfloat16_products_alone_are_rounded(with_exits):
    _, model = with_exits
    model.config.exit_thres = 0.0
    with torch.inference_mode():
        exact = model(IDS, MASK).logits
        cast_layers(model, torch.bfloat16)
        rounded = model(IDS, MASK).logits
        packed = packed_copy(model)(IDS, MASK).logits
    difference = (rounded - exact).abs().max() / exact.abs().max()
    assert 1e-5 < difference < 0.1
    assert rounded.dtype == torch.float32
    assert torch.equal(packed, rounded)
    layers = model.albert.steps.layers(model.albert.model)
    linear_maps = [module for module in layers.modules() if isinstance(module, torch.nn.Linear)]
    assert {linear.weight.dtype for linear in linear_maps} == {torch.bfloat16}
    cast_layers(model, torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@each_encoder
def test_flops_are_those_that_torch_counts_of_transformers(with_exits):
    twin, model = with_exits
    twin.set_attn_implementation("eager")  # torch counts nothing of a CPU's fused attention
    config = model.config
    for length in (2, 7, 20, 40):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            twin.base_model(inputs_embeds=torch.ones(1, length, 32))
        pooler = getattr(twin.base_model, "pooler", None)
        pooler_flops = 0 if pooler is None else 2 * 32 * 32
        layers = config.full_depth_flops(length) - config.classifier_flops()
        assert layers == counter.get_total_flops() - pooler_flops


@each_encoder
def test_a_summary_counts_every_parameter_in_its_part(with_exits):
    twin, model = with_exits
    embeddings = sum(x.numel() for x in twin.base_model.embeddings.parameters())
    exits = sum(x.numel() for x in model.albert.encoder.parameters())
    exits += 0 if model.exit_weights is None else model.exit_weights.numel()
    lines = summary(model).splitlines()
    rest = sum(x.numel() for x in model.parameters()) - embeddings - exits
    assert f"  layers: {rest:,}" in lines
    assert f"  exits and heads: {exits:,}" in lines


@each_encoder
def test_recorded_states_are_transformers_or_refused(with_exits):
    twin, model = with_exits
    if twin.config.model_type == "deberta-v2":
        with pytest.raises(UserError, match="records none of the layers"):
            model(IDS, MASK, output_hidden_states=True)
        return
    with torch.no_grad():
        ours = model(IDS, MASK, output_hidden_states=True).hidden_states
        theirs = twin(IDS, MASK, output_hidden_states=True).hidden_states
    assert len(ours) == len(theirs)
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert_near(mine[MASK.bool()], other[MASK.bool()])


@each_encoder
def test_an_adapter_learns_in_every_layer(with_exits):
    peft = pytest.importorskip("peft")
    _, model = with_exits
    settings = peft.LoraConfig(
        target_modules="all-linear",
        modules_to_save=["pooler", "classifier"],
        init_lora_weights=False,
    )
    adapted = peft.get_peft_model(model, settings).train()
    adapted(IDS, MASK, labels=torch.tensor([0, 1, 2, 0, 1, 2])).loss.backward()
    lora = {name: x.grad for name, x in adapted.named_parameters() if ".lora_" in name}
    for layer in range(4):
        in_layer = [grad for name, grad in lora.items() if re.search(rf"layers?\.{layer}\.", name)]
        assert in_layer
        assert all(grad.abs().sum() > 0 for grad in in_layer)


def test_keys_of_the_suites_own_layer_are_refused(tmp_path):
    tiny_classifier("modernbert").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="correction_rank = 2: allowed is 0"):
        load_pretrained(tmp_path, correction_rank=2)


def test_mpnet_by_transformers_layers_answers_as_by_the_suites(tmp_path):
    torch.manual_seed(5)
    sizes = {**SIZES, "max_position_embeddings": 41}
    twin = transformers.MPNetForSequenceClassification(
        transformers.MPNetConfig(**sizes, num_labels=3)
    ).eval()
    twin.save_pretrained(tmp_path)
    suites, _ = load_pretrained(tmp_path, **ADD_EXITS, exit_thres=0.0)
    values = as_elbert(json.loads((tmp_path / "config.json").read_text()))
    config = ElbertConfig(**values, **ADD_EXITS, exit_thres=0.0)
    general, _ = load_model(Elbert, tmp_path, config)
    with torch.no_grad():
        expected = twin(IDS, MASK).logits
        assert torch.equal(general.eval()(IDS, MASK).logits, expected)
        assert_near(suites.eval()(IDS, MASK).logits, expected)


@each_encoder
@pytest.mark.parametrize("keys", [ADD_EXITS, {"use_out_pooler": True}])
def test_automodel_gives_the_encoder_of_a_trained_folder(model_type, keys, tmp_path):
    """To the last bit; pooled states are those that the exits read."""
    twin = tiny_classifier(model_type).base_model
    twin.save_pretrained(tmp_path / "hf")
    tiny_classifier(model_type).save_pretrained(tmp_path / "classifier")
    folder = tmp_path / ("classifier" if keys is ADD_EXITS else "hf")
    model, _ = load_pretrained(folder, **keys)
    model.save_pretrained(tmp_path / "saved")
    encoder, told = AutoModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    with torch.no_grad():
        for mask in (MASK, None):
            out = encoder(IDS, mask)
            assert torch.equal(out.last_hidden_state, twin(IDS, mask).last_hidden_state)
        if keys is ADD_EXITS:
            assert out.pooler_output is None
        else:
            first = out.last_hidden_state[:, 0]
            assert torch.equal(out.pooler_output, model.albert.pooler(first))


@each_encoder
def test_a_batch_is_embedded_once(with_exits):
    _, model = with_exits
    model.config.exit_thres = thresholds_of(model)[-1]  # the batch shrinks on its way
    calls = []
    model.albert.model.embeddings.register_forward_hook(lambda *call: calls.append(1))
    with torch.no_grad():
        layers = model(IDS, MASK).exit_layer
    assert len(set(layers.tolist())) > 1
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "weights are quantised"),
        ({"is_decoder": True}, "is_decoder = True asks for"),
        ({"add_cross_attention": True}, "add_cross_attention = True asks for"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads = .* asks for"),
    ],
)
@each_encoder
def test_a_configuration_that_changes_the_computation_is_refused(
    model_type, values, message, tmp_path
):
    tiny_classifier(model_type).config.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **values)
    with pytest.raises(UserError, match=message):
        load_pretrained(tmp_path)


@each_encoder
def test_an_adapter_beside_its_base_is_refused(model_type, tmp_path):
    tiny_classifier(model_type).save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UserError, match="adapter"):
        load_pretrained(tmp_path)
