"""Exported files against PyTorch: the same exits, the same answers, in ONNX Runtime."""

import copy
import json
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F

from elbert import (
    AlbertActForSequenceClassification,
    UserError,
    load_pretrained,
    with_halting_token,
)
from elbert.onnx_file import OnnxFile, describe_model
from evaluation.calibration import deepest_settings
from evaluation.modes import MODES
from modeling.depth_batching import DepthBatcher
from modeling.keys import EXIT_KEYS
from tests.conftest import TINY, random_ids, tiny_model
from tests.general_encoders import ENCODERS, with_exits
from tests.modeling.hf_layers.test_every_encoder import small
from tests.models import mask_of, one_of, tiny_act, tiny_ponder

onnx = pytest.importorskip("onnx")
ir = pytest.importorskip("onnx_ir")
onnxruntime = pytest.importorskip("onnxruntime")
check = pytest.importorskip("modeling.export.check")
graph = pytest.importorskip("modeling.export.graph")
quantise = pytest.importorskip("modeling.export.quantise")

pytestmark = pytest.mark.onnx

SETTINGS = {"exit_thres": 0.0, "cnt_thres": 2, "margin": 0.02, "range_tmp": 0.8}
STOPPING = {
    "stopping_thresholds": [[0.0, 0.1, 0.6, 0.6], [1.0, 0.62, 0.65, 0.66]],
    "exit_calibration": [[0.1, 1, 0.2, 0, -0.3, 0, 1.5, 0, 0, 0.1, 0.3, 0.6]],
    "exit_price": 0.9,
}
STOPPING_VALUE = {
    "stopping_thresholds": [[0.0, 0.0, 0.1, 0.2], [1.0, 0.0, 0.3, 0.3]],
    "exit_calibration": [[0.1, 1.2, 0.0], [0.0, 0.5, 0.5]],
}
KEPT_HEAD = {
    "thres_name": "bias_3",
    "pooler_input": "mean",
    "use_out_pooler": False,
    "num_exit_layers": 0,
    "keep_head": True,
    "head_activation": "gelu",
}
# Few, since the exporter traces each of them.
LAYERS_OF_THEIR_OWN = {"num_hidden_layers": 3, "num_hidden_groups": 3}
MODELS = {
    "bias_3": {"thres_name": "bias_3", "num_labels": 3, "num_hidden_layers": 6, **SETTINGS},
    "entropy": {"thres_name": "entropy"},
    "logits": {"thres_name": "logits", "num_labels": 3, "pooler_input": "mean-max"},
    "max_prob": {"thres_name": "max_prob", "num_labels": 3, "pooler_input": "cls-mean"},
    "bias_1": {"thres_name": "bias_1", "num_hidden_layers": 6},
    "bias_2": {"thres_name": "bias_2", "num_labels": 3, "num_hidden_layers": 6},
    "patience": {"thres_name": "patience", "use_out_pooler": False, "use_fc2": True},
    "learnt": {"thres_name": "learnt", "learnt_weights": [[0.3, 0.8, 0.4], [0.0, 0.9, 0.3]]},
    "learnt value": {"thres_name": "learnt", "learnt_weights": [[0.2, 1, -1, -2]], "num_labels": 1},
    "stopping": {"thres_name": "optimal_stopping", "num_labels": 3, **STOPPING},
    "stopping value": {"thres_name": "optimal_stopping", "num_labels": 1, **STOPPING_VALUE},
    "class0": {"thres_name": "bias_2", "num_labels": 3, "window_score": "class0"},
    "regression": {"thres_name": "bias_1", "num_labels": 1},
    "regression patience": {"thres_name": "patience", "num_labels": 1, "inner_group_num": 2},
    "exits and groups": {"num_exit_layers": 3, "num_hidden_groups": 2, "num_hidden_layers": 6},
    "untied": {**LAYERS_OF_THEIR_OWN, "embedding_size": 32, **KEPT_HEAD},
    "corrected": {**LAYERS_OF_THEIR_OWN, "correction_rank": 3},
    "RoBERTa": {**LAYERS_OF_THEIR_OWN, "positions_skip_padding": True, "pad_token_id": 1},
    "MPNet": {
        **LAYERS_OF_THEIR_OWN,
        "positions_skip_padding": True,
        "pad_token_id": 1,
        "relative_attention_num_buckets": 32,
    },
    "some exits": {"exit_layers": [2, 3, 6], "num_hidden_layers": 6, "thres_name": "bias_1"},
    "some exits of one's own": {
        "num_hidden_groups": 4,
        "exit_layers": [1, 3, 4],
        **KEPT_HEAD,
        "thres_name": "patience",
    },
    "one layer": {"num_hidden_layers": 1, "thres_name": "bias_2"},
    "eager": {"attn_implementation": "eager"},
}
PONDER_MODELS = {
    "threshold": {"exit_criteria": "threshold", "lambda_layer_arch": "linear_cat"},
    "last_layer": {"exit_criteria": "threshold", "halt_normalization": "last_layer"},
    "sample": {"exit_criteria": "sample", "num_labels": 3, "lambda_layer_arch": "linear_diff"},
    "expectation": {"exit_criteria": "expectation"},
    "expected value": {"exit_criteria": "expectation", "num_labels": 1},
    "one pooler": {"exit_criteria": "threshold", "pooler_input": "mean"},
}
# ModernBERT, DeBERTa and NomicBERT: transformers' own layers, behind which a kept head stands.
ACT_MODELS = {"act": {}, "graves": {"act_update": "graves", "pooler_input": "mean"}}


def in_one_process(*names: str) -> list:
    """Slow cases; those of one model run in one process, which exports it once."""
    return [
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.xdist_group(name)])
        for name in names
    ]


def graph_of(model: torch.nn.Module) -> ir.Model:
    return graph.to_onnx(MODES[model.config.model_type].export_loop(model), {})


def open_session(exported: ir.Model, **options) -> onnxruntime.InferenceSession:
    """Open a session, after the checker has passed the file."""
    proto = ir.to_proto(exported)
    onnx.checker.check_model(proto, full_check=True)
    session_options = onnxruntime.SessionOptions()
    for name, value in {"intra_op_num_threads": 1, "log_severity_level": 3, **options}.items():
        setattr(session_options, name, value)
    return onnxruntime.InferenceSession(proto.SerializeToString(), session_options)


@cache
def exported(name: str) -> tuple:
    """A model of the tables, or Adaptive Depth's, a session of its file, and the file's graph."""
    if name in MODELS:
        model = tiny_model(**MODELS[name])
    elif name in PONDER_MODELS:
        model = tiny_ponder(**TINY, **PONDER_MODELS[name])
        model.tokenizer = None  # any id may come first
    elif name in ENCODERS:
        model = with_exits(name, num_hidden_layers=3)
    else:
        keys = ACT_MODELS[name]
        model = tiny_act(3, AlbertActForSequenceClassification, num_labels=3, **keys).float()
    file = graph_of(model)
    return model, open_session(file), file


def answers(session: onnxruntime.InferenceSession, **feed) -> list[np.ndarray]:
    """Return the outputs; numbers that are not whole go in as float32."""
    arrays = {name: np.asarray(value) for name, value in feed.items()}
    for name, array in arrays.items():
        if array.dtype == np.float64:
            arrays[name] = array.astype(np.float32)
    return session.run(None, arrays)


def ones_beside(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids % 2}


@st.composite
def texts(draw, shortest: int = 1) -> dict[str, torch.Tensor]:
    """A batch of one to five texts of up to nine tokens, with any ids under the padding."""
    lengths = draw(st.lists(st.integers(shortest, 9), min_size=1, max_size=5))
    mask = F.pad(mask_of(lengths), (0, draw(st.integers(1 - shortest, 2))))
    ids = random_ids(*mask.shape, draw(st.integers(0, 10**6))) % 40
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}


def settings_of(name: str, layers: int) -> st.SearchStrategy[dict]:
    if name in ACT_MODELS:
        return st.fixed_dictionaries({"act_epsilon": st.sampled_from([0.01, 0.1, 0.3, 0.6, 0.9])})
    if name in PONDER_MODELS:
        return st.fixed_dictionaries({"exit_thres": st.floats(0, 1, width=32)})
    return st.fixed_dictionaries(
        {
            "exit_thres": st.sampled_from([0.0, 0.05, 0.13, 0.3, 0.6, 0.9, 0.97]),
            "cnt_thres": st.integers(1, layers),
            "margin": st.sampled_from([0.0, 0.03, 0.11, 0.27]),
            "range_tmp": st.sampled_from([0.0, 0.07, 0.21, 0.8, 3.0]),
        }
    )


def drawn(name: str, model, data: st.DataObject, shortest: int = 1) -> tuple[dict, dict]:
    """A model's inputs, a ponder model's second [CLS] and draws among them, and its settings."""
    inputs = data.draw(texts(shortest))
    if name in PONDER_MODELS and model.config.extra_tokens:
        inputs = {key: with_halting_token(value) for key, value in inputs.items()}
    if name == "sample":
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
        inputs["draws"] = torch.rand(len(inputs["input_ids"]), generator=generator)
    chosen = data.draw(settings_of(name, model.config.num_hidden_layers))
    model.config.update(chosen)
    return inputs, chosen


@torch.no_grad()
def answered(model, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's answers, (batch, labels), and its examples' exit layers or tokens' updates."""
    out = model(**inputs)
    if "updates" in out:
        return out.logits, out.updates[:, 0, 0].long()
    return out.get("answer", out.logits), out.exit_layer


def assert_same(outputs: list[np.ndarray], answer: torch.Tensor, depths: torch.Tensor) -> None:
    """Compare a file's outputs with the model's answers, and with exit layers or updates."""
    logits, file_depths, layers_run = outputs
    assert file_depths.tolist() == depths.tolist()
    assert layers_run == depths.max()
    np.testing.assert_allclose(logits, answer.numpy(), atol=1e-4, rtol=0)


# Derandomised: an example in a hundred thousand may sit where rounding decides.
@settings(derandomize=True, max_examples=25)
@pytest.mark.parametrize("name", in_one_process(*MODELS, *PONDER_MODELS, *ACT_MODELS, *ENCODERS))
@given(data=st.data())
def test_a_file_exits_where_the_model_does(name, data):
    """Every example, and of Adaptive Depth every token."""
    model, session, _ = exported(name)
    inputs, chosen = drawn(name, model, data, 0 if name in MODELS else 1)  # 0: all padding
    assert_same(answers(session, **inputs, **chosen), *answered(model, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("change", [0.9, -1])
def test_a_file_that_does_not_answer_as_its_model_is_refused(change):
    model, _, file = exported("modernbert")
    few_exit_early = deepest_settings(model.config)
    check.check_answers(file, model, few_exit_early)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(change)
        other.albert.model.layers[0].mlp.Wo.weight.mul_(change)
    with pytest.raises(UserError, match=r"not answer as the model does.* Serve the model in Py"):
        check.check_answers(file, other, few_exit_early)


# Encoders of docs/encoders.md, and what stops their export.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mobilebert", "torch's exporter cannot take the layers of model_type = 'mobilebert'"),
        ("layoutlm", "ONNX Runtime refuses the file"),
    ],
)
def test_layers_that_cannot_be_exported_are_told_in_one_line(model_type, reason, tmp_path):
    small(model_type).save_pretrained(tmp_path)
    model, _ = load_pretrained(tmp_path, thres_name="entropy")
    with pytest.raises(UserError, match=f"{reason}.* Serve the model in PyTorch") as error:
        check.check_answers(graph_of(model.eval()), model, deepest_settings(model.config))
    assert "\n" not in str(error.value)


@cache
def exported_int8(name: str) -> onnxruntime.InferenceSession:
    """Calibrated on texts that run all layers."""
    model, _, file = exported(name)
    deepest = deepest_settings(model.config)
    if name == "sample":
        deepest["draws"] = np.ones(1, np.float32)
    single = [ones_beside(random_ids(1, length) % 40) for length in range(2, 10)]
    feeds = [{key: value.numpy() for key, value in text.items()} | deepest for text in single]
    own_file = ir.from_proto(ir.to_proto(file))  # to_int8 changes what it is given
    return open_session(quantise.to_int8(own_file, model.config.hidden_size, feeds))


@settings(derandomize=True, max_examples=25)
@pytest.mark.parametrize(
    "name", in_one_process("bias_3", "corrected", "MPNet", "sample", *ACT_MODELS, *ENCODERS)
)
@given(data=st.data())
def test_a_text_has_one_answer_alone_in_a_batch_in_slots_and_in_a_file(name, data):
    """An int8 file, whose answers are its own, gives them alone and in a batch."""
    model, fp32, _ = exported(name)
    int8 = exported_int8(name)
    inputs, chosen = drawn(name, model, data)
    lengths = inputs["attention_mask"].sum(1).tolist()
    single = [one_of(inputs, row) for row in range(len(lengths))]
    alone = [answered(model, text) for text in single]
    int8_alone = [answers(int8, **text, **chosen) for text in single]
    # Answers to a batch, and those that each of its texts has alone.
    comparisons = [
        (answered(model, inputs), alone),
        (answers(fp32, **inputs, **chosen), alone),
        (answers(int8, **inputs, **chosen), int8_alone),
    ]
    if name not in ACT_MODELS:
        batcher = DepthBatcher(model, slots=2, window=3)
        parts = ("input_ids", "token_type_ids", *model.config.own_inputs)
        batcher.submit([text[key][0] for key in parts if key in text] for text in single)
        slot_answers = sorted(batcher.answers())  # by row
        logits = np.array([answer.logits.numpy() for answer in slot_answers])
        exit_layers = np.array([answer.exit_layer for answer in slot_answers])
        comparisons.append(((logits, exit_layers), alone))
    for (logits, depths, *_), expected in comparisons:
        for row, (length, (answer, depth, *_)) in enumerate(zip(lengths, expected, strict=True)):
            np.testing.assert_allclose(logits[row], answer[0], atol=1e-4, rtol=0)
            assert np.array_equal(depths[row : row + 1][..., :length], depth)


@pytest.mark.slow
def test_int8_is_calibrated_on_all_layers_also_where_a_rule_always_exits_at_the_first():
    """The ranges of every layer's inputs are those of a model that never exits early."""
    eager = {"thres_name": "optimal_stopping", "stopping_thresholds": [[0.0] + [2.0] * 3]}
    feed = {name: tensor.numpy() for name, tensor in ones_beside(random_ids(1, 7)).items()}
    found, expected = (
        quantise.calibrate(
            graph_of(tiny_model(num_hidden_groups=4, **rule)), TINY["hidden_size"], [feed]
        )
        for rule in (eager, {"thres_name": "entropy", "exit_thres": 0.0})
    )
    assert len(found) == len(expected) > 4
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.lowest, theirs.lowest, atol=1e-6)
        np.testing.assert_allclose(ours.highest, theirs.highest, atol=1e-6)


@pytest.mark.slow
def test_the_matrices_of_every_corrected_layer_and_exit_are_quantised(tmp_path):
    """And ONNX Runtime computes them all in whole numbers."""
    model = tiny_model(**MODELS["corrected"])
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)  # a new one of zeros would be left out
    feed = {name: tensor.numpy() for name, tensor in ones_beside(random_ids(2, 7)).items()}
    exported = quantise.to_int8(graph_of(model), TINY["hidden_size"], [feed])
    quantised = [name for name in exported.graph.initializers if name.endswith("_weight_int8")]
    assert len(quantised) == 3 * 7  # six of a layer and one of its exit
    as_run = tmp_path / "as_run.onnx"
    open_session(exported, optimized_model_filepath=str(as_run)).run(None, feed)
    products = []
    for _, body in quantise.loop_bodies(ir.load(as_run)):
        products += [node for node in body if node.op_type == "MatMulIntegerToFloat"]
    assert len(products) == 3 * 7


def test_settings_left_out_are_the_models():
    _, session, _ = exported("bias_3")
    model = tiny_model(**MODELS["bias_3"])
    assert [value.name for value in session.get_inputs()] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
    ]
    optional = {value.name for value in session.get_overridable_initializers()}
    assert optional == {name for name, key in EXIT_KEYS.items() if key.kind in (int, float)}
    inputs = ones_beside(random_ids(9, 6))
    with torch.no_grad():
        out = model(**inputs)
    assert len(set(out.exit_layer.tolist())) > 1
    assert_same(answers(session, **inputs), out.logits, out.exit_layer)


@pytest.mark.slow
def test_a_file_gives_every_layers_answer_and_takes_settings_as_plain_inputs(tmp_path):
    """What a page in a browser needs."""
    model = tiny_model(num_hidden_groups=2, exit_thres=0.6)
    mode = MODES[model.config.model_type]
    loop = mode.export_loop(model, layer_logits=True)
    metadata = {name: json.dumps(value) for name, value in describe_model(model).items()}
    exported = graph.to_onnx(loop, metadata, has_defaults=False)
    session = open_session(exported)
    inputs = ones_beside(random_ids(5, 6))
    assert session.get_overridable_initializers() == []
    *outputs, layer_logits = answers(session, **inputs, **loop.settings())
    with torch.no_grad():
        out = model(**inputs)
        all_logits = model(**inputs, output_all_exits=True).all_logits
    assert_same(outputs, out.logits, out.exit_layer)
    ran = int(outputs[2])
    assert 1 < ran < len(layer_logits) == 4
    np.testing.assert_allclose(layer_logits[:ran], all_logits[:ran].numpy(), atol=1e-4, rtol=0)
    assert not layer_logits[ran:].any()
    ir.save(exported, tmp_path / "a.onnx")
    again = OnnxFile(tmp_path / "a.onnx", model.config)(**inputs)
    assert again.exit_layer.tolist() == out.exit_layer.tolist()
