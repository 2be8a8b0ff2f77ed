"""Files from anywhere: whatever they hold, no file outside a model's folder is read or written, no
code is run, and a user sees one of the project's errors or an answer."""

import builtins
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from safetensors.torch import load_file, save_file

from elbert import ElbertConfig, UserError, load_config, load_pretrained, load_tokenizer
from elbert.onnx_file import OnnxFile
from evaluation.calibration import find_texts
from evaluation.model_card import starting_model
from evaluation.scorer import trained_columns
from glue.custom import custom_task
from glue.splits import read_examples
from glue.tasks import TASKS, get_task
from modeling.exit_settings import NO_KEYS, resolve
from modeling.keys import ELBERT, ELBERT_KEYS, EXIT_KEYS, INERT_KEYS
from runs.files import write_json
from runs.folder import LIST_FILE
from runs.job import load_finished
from runs.output_dir import remove_results, statistics_folder
from runs.provenance import training_flags
from tests.conftest import edit_json, tiny_config, write
from training.checkpoints import damage

RTE = get_task("rte")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
BYTES = st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8"))
BYTES_OR_JSON = BYTES | JSON.map(lambda value: json.dumps(value).encode())
ANY_TABLE = st.binary(max_size=300) | st.text(
    alphabet='\t\n\r"{}[]:,01.na\x00\ufeff\ud7ffé', max_size=300
).map(str.encode)
NEAR = st.integers(-2, 40) | st.sampled_from([0.5, 1.0, 2.0, "bias_2", "lead", "gelu", "relu"])
PLACES = ["..", "../..", "/", "/dev/zero", "/etc/passwd", "a\0b", "~", "org/kernel", "a" * 300]
VALUES = NEAR | JSON | st.sampled_from(PLACES)
KNOWN = sorted(json.loads(tiny_config().to_json_string(use_diff=False)))
KNOWN += "my_out_dir model_name attn_implementation _attn_implementation auto_map".split()
FLAGS = """max_seq_length task_name data_dir validation_file train_file text_column_names seed
label_column_name task_type metric_name model_name_or_path drop_incomplete_rows""".split()
KEYS = st.sampled_from([*KNOWN, *ELBERT_KEYS, *INERT_KEYS]) | st.text(max_size=6)


@pytest.fixture(scope="module")
def model(trained_once, tmp_path_factory) -> Path:
    """A trained model whose files a test may change, if it puts them back."""
    return Path(shutil.copytree(trained_once, tmp_path_factory.mktemp("foreign") / "RTE"))


def tried(function, *arguments):
    """The function's answer, or the error that it refused with in the project's words."""
    try:
        return function(*arguments)
    except UserError as error:
        return error


def refused(answer) -> bool:
    return isinstance(answer, UserError)


def answer(folder: Path) -> torch.Tensor:
    """What an evaluation does with a model's folder."""
    model = load_finished(folder)
    statistics_folder(folder, model.config.my_out_dir, model.config.model_name, "rte")
    with torch.inference_mode():
        return model(torch.tensor([[2, 7, 3]])).logits


# Any bytes, any values.


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4) | BYTES_OR_JSON)
@example(b"[" * 100_000)
@example(b'{"exit_thres": ' + b"9" * 5000 + b"}")
@example({"cnt_thres": 10**400})
@example({"hidden_act": "none such"})
@example({"hidden_dropout_prob": 2.0})
@example({"num_labels": 0})
@example({"layer_norm_eps": "x"})
@example({"pad_token_id": 10**6})
@example({"eos_token_id": -(2**63) - 1})
@example({"num_attention_heads": -4})
@example({"vocab_size": 10**9})
@example({"hidden_size": 10**7})
@example({"dtype": "float99"})
@example({"model_type": []})
@example({"id2label": {"0": 1, "1": 2}})
@example({"id2label": {"5": "a", "6": "b"}})
@example({"my_out_dir": "a\0b", "exit_config_path": "a\0b", "model_name": "a\0b"})
@example({"_attn_implementation": {"": "org/kernel"}})
def test_anything_as_config_json(model, content):
    path = model / "config.json"
    before, there = path.read_bytes(), {*model.parent.rglob("*")}
    edit_json(path, **content) if isinstance(content, dict) else write(path, content)
    try:
        found = tried(answer, model)
        assert (str(model) in str(found)) if refused(found) else (found.shape[0] == 1)
        new = {*model.parent.rglob("*")} - there
        assert all(entry.is_relative_to(model) for entry in new)
    finally:
        path.write_bytes(before)


@given(st.dictionaries(st.sampled_from(sorted(EXIT_KEYS)) | KEYS, VALUES, max_size=4).map(
    lambda values: json.dumps(values).encode()) | BYTES_OR_JSON)  # fmt: skip
@example(b'{"cnt_thres": 1' + b"0" * 400 + b"}")
def test_anything_as_exit_config_json(tmp_path, content):
    path = write(tmp_path / "exit_config.json", content)
    config = tiny_config(exit_config_path="exit_config.json")
    found = tried(resolve, tmp_path, ELBERT, NO_KEYS, vars(config))
    if refused(found):
        assert path.name in str(found)
    else:
        config.update(found.values)
        config.exit_rule()


@given(BYTES, st.sampled_from(["model.safetensors", "pytorch_model.bin"]))
def test_anything_as_weights(tmp_path, content, name):
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    tiny_config().save_pretrained(folder)
    write(folder / name, content)
    assert refused(tried(load_pretrained, folder))


@given(BYTES_OR_JSON)
def test_anything_as_a_checkpoints_list_of_files(tmp_path, content):
    write(tmp_path / "config.json", "{}")
    write(tmp_path / LIST_FILE, content)
    assert damage(tmp_path)


@given(st.dictionaries(st.sampled_from(FLAGS), VALUES, max_size=4) | JSON)
@example({"max_seq_length": "long", "data_dir": 5})
@example({"text_column_names": ["a"]})
def test_anything_as_the_flags_of_a_training(model, flags):
    """It does not say who sent the card's starting model, or on which texts int8 is calibrated."""
    path = model / "training.json"
    old = path.read_bytes()
    try:
        path.write_text(json.dumps({"provenance": {"flags": flags}}))
        found = tried(training_flags, model)
        assert refused(found) or isinstance(found, dict)
        for use in (starting_model, trained_columns):
            used = tried(use, model)
            assert refused(used) or used is None or isinstance(used, str | tuple)
        texts = tried(find_texts, model, None)
        assert refused(texts) or isinstance(texts.max_length, int)
    finally:
        path.write_bytes(old)


@given(content=ANY_TABLE, name=st.sampled_from(list(TASKS)), split=st.sampled_from(["dev", "test"]))
@example(content=b"\xef\xbb\xbf\n\n", name="cola", split="dev")
def test_anything_as_a_tasks_tsv(tmp_path, content, name, split):
    task = get_task(name)
    columns = [*task.text_columns, task.label_column]
    header = b"" if task.headerless and split == "dev" else "\t".join(columns).encode() + b"\n"
    for text in (content, header + content):
        write(tmp_path / task.files.get(split, "none"), text)
        examples = tried(read_examples, task, tmp_path, split)
        assert refused(examples) or all(isinstance(e.text_a, str) for e in examples)


@given(content=ANY_TABLE, suffix=st.sampled_from([".csv", ".tsv", ".jsonl"]))
@example(content=b"[" * 100_000, suffix=".jsonl")
@example(content=b'{"sentence1": "\\ud800", "label": 1}', suffix=".jsonl")
@example(content=b"\x00,\x00", suffix=".csv")
@example(content=b"a" * 10**6 + b",1\nb,0", suffix=".csv")
def test_anything_as_the_users_own_file(tmp_path, content, suffix):
    header = {".csv": b"sentence1,label\n", ".tsv": b"sentence1\tlabel\n", ".jsonl": b""}[suffix]
    for text in (content, header + content):
        task = tried(custom_task, {"train": write(tmp_path / f"train{suffix}", text)})
        assert refused(task) or tried(read_examples, task, "", "train")


@given(BYTES_OR_JSON | JSON.map(lambda value: json.dumps({"_data_files": value}).encode()))
@example(b"[" * 100_000)
@example(b'{"_data_files": [{"filename": 5}]}')
@example(b'{"_data_files": [{"filename": "/dev/zero"}]}')
def test_anything_as_the_state_of_a_datasets_folder(tmp_path, content):
    pytest.importorskip("pyarrow")
    write(tmp_path / "dataset_info.json", "{}")
    write(tmp_path / "state.json", content)
    assert refused(tried(custom_task, {"train": tmp_path}))


TEXTS = ("a man sings", "the dog \0 é 猫", "")
NAMES = st.sampled_from(["tokenizer.json", "tokenizer_config.json"])


def tokenised(folder: Path) -> list[int]:
    tokenizer = load_tokenizer(folder)
    return [piece for text in TEXTS for piece in tokenizer(text, "red cat")["input_ids"]]


@given(NAMES, st.integers(0, 10**6), st.integers(0, 20), st.binary(max_size=8))
def test_any_damage_to_a_tokenizer(model, name, start, length, new):
    path = model / name
    before = path.read_bytes()
    start %= len(before)
    path.write_bytes(before[:start] + new + before[start + length :])
    try:
        found = tried(tokenised, model)
        assert refused(found) or all(isinstance(piece, int) for piece in found)
    finally:
        path.write_bytes(before)


GOOD_FILE = {
    "logits": [[0.5, -3.0]],
    "layers": [4],
    "kinds": (np.float32, np.int64),
    "names": ("logits", "exit_layer"),
    "labels": ["LABEL_0", "LABEL_1"],
    "inputs": ["input_ids", "attention_mask", "token_type_ids"],
}
ANSWERS = st.lists(st.sampled_from([0.5, 1e30, float("nan"), float("inf")]), min_size=1, max_size=3)
FOREIGN = {
    "logits": ANSWERS.map(lambda row: [row]) | ANSWERS.map(lambda row: [row, row]),
    "layers": st.lists(st.integers(-2, 6) | st.just(2**62), min_size=1, max_size=2),
    "kinds": st.sampled_from([(np.float64, np.int64), (np.float32, np.float32)]),
    "names": st.sampled_from([("logits", "updates"), ("a", "b")]),
    "labels": st.sampled_from([["LABEL_1", "LABEL_0"], ["a"], [], "ab", 3]),
    "rule": st.sampled_from([5, {}, "{"]),
    "inputs": st.sampled_from([["input_ids", "password"], ["input_ids"]]),
}


@pytest.mark.onnx
@given(st.fixed_dictionaries({}, optional=FOREIGN))
@example({})
def test_anything_as_the_answers_of_an_onnx_file(tmp_path, changes):
    """A file that answers constants to one text; only what the model could say is an answer."""
    onnx, config = pytest.importorskip("onnx"), tiny_config()
    pytest.importorskip("onnxruntime")
    given, make = GOOD_FILE | changes, onnx.helper
    arrays = [np.array(given[name]) for name in ("logits", "layers")]
    arrays = [array.astype(kind) for array, kind in zip(arrays, given["kinds"], strict=True)]
    stored = list(map(onnx.numpy_helper.from_array, arrays, given["names"]))
    nodes = [make.make_node("Constant", [], [x.name], value=x) for x in stored]
    outputs = [make.make_tensor_value_info(x.name, x.data_type, None) for x in stored]
    inputs = [make.make_tensor_value_info(x, onnx.TensorProto.INT64, None) for x in given["inputs"]]
    graph = make.make_graph(nodes, "constant", inputs, outputs)
    opset = [make.make_opsetid("", 20)]
    file = make.make_model(graph, opset_imports=opset, ir_version=10)
    about = {"model_type": "elbert", "num_hidden_layers": 4, "dtype": "fp32"}
    about |= {"labels": given["labels"], "rule": given.get("rule", config.exit_keys())}
    make.set_model_props(file, {name: json.dumps(x) for name, x in about.items()})
    onnx.save(file, tmp_path / "a.onnx")
    ids = torch.tensor([[2, 7, 3]])
    found = tried(lambda: OnnxFile(tmp_path / "a.onnx", config)(ids, token_type_ids=ids * 0))
    possible = (
        not {*changes} & {"kinds", "names", "labels", "rule"} and "password" not in given["inputs"]
    )
    possible &= arrays[0].shape == (1, 2) and bool(np.isfinite(arrays[0]).all())
    possible &= len(given["layers"]) == 1 and 1 <= given["layers"][0] <= 4
    assert refused(found) != possible
    assert not refused(found) or len(str(found).splitlines()) == 1


# Paths that lead out, and code.


@pytest.mark.parametrize("kind", ["file", "link", "device", "pipe", "absolute"])
def test_an_exit_config_outside_the_model_is_not_read(kind, tmp_path, monkeypatch):
    folder, outside = tmp_path / "model", write(tmp_path / "secret.json", '{"secret": "word"}')
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    paths = {"file": "../secret.json", "absolute": str(outside), "device": "/dev/zero"}
    name = paths.get(kind, kind)
    monkeypatch.setattr(Path, "read_bytes", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(UserError, match=r"leads out|not a regular file"):
        resolve(folder, ELBERT, config=vars(tiny_config(exit_config_path=name)))


@pytest.mark.parametrize("directory", ["own", "link", "loop", "../elsewhere"])
def test_results_are_neither_written_nor_removed_outside_the_model(directory, tmp_path, caplog):
    """Whatever a foreign config.json, links or list of what the old weights gave say."""
    model, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    config = tiny_config(my_out_dir=directory, model_name="sample")
    config.save_pretrained(model)
    elsewhere.mkdir()
    mine = write(elsewhere / "layers_exit.csv", "mine")
    for link, target in (("link", elsewhere), ("stat_out", elsewhere), ("loop", model / "loop")):
        (model / link).symlink_to(target)
    folder = statistics_folder(model, config.my_out_dir, config.model_name, "rte")
    assert folder.resolve().is_relative_to(model)
    assert ("leads out" in caplog.text) == (directory != "own")
    write_json(model / LIST_FILE, {"link/layers_exit.csv": {"size": 4}})
    remove_results(model)
    assert mine.read_text() == "mine"


def test_no_attention_is_loaded_that_a_file_or_a_call_names(trained):
    edit_json(trained / "config.json", _attn_implementation="org/kernel")
    assert answer(trained).shape == (1, 2)
    assert load_config(trained)._attn_implementation in (None, "sdpa")
    with pytest.raises(UserError, match="org/kernel"):
        ElbertConfig(attn_implementation="org/kernel")


def test_a_tokenizers_code_is_neither_run_nor_asked_for(trained, tmp_path, monkeypatch):
    (trained / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    evil = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    edit_json(trained / "tokenizer_config.json", **evil)
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("it asked"))
    tried(load_tokenizer, trained)
    assert not (tmp_path / "ran").exists()


# Answers that would mean nothing.

NAME = "albert.encoder.embedding_hidden_mapping_in.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.index_fill(0, torch.tensor([0]), torch.nan), "NaN or infinite"),
        (lambda weights: torch.full_like(weights, 1e300, dtype=torch.double), "NaN or infinite"),
        (lambda weights: weights.to(torch.int8), "torch.int8"),
        (lambda weights: weights.to(torch.float16), None),
        (lambda weights: weights.to(torch.float64), None),
    ],
)
def test_weights_are_finite_numbers_in_any_type_of_fractions(change, words, trained):
    path = trained / "model.safetensors"
    tensors = load_file(path)
    tensors[NAME] = change(tensors[NAME])
    save_file(tensors, path)
    if words:
        with pytest.raises(UserError, match=f"{NAME} .*{words}"):
            load_pretrained(trained)
    else:
        assert {p.dtype for p in load_pretrained(trained)[0].parameters()} == {torch.float32}
