"""Files from anywhere: whatever they hold, a user sees one of the project's errors or an answer."""

import json
import math
from pathlib import Path

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save_file

from glue.custom import custom_task
from glue.tasks import TASKS, get_task, read_examples
from modeling import (
    ElbertConfig,
    ElbertForSequenceClassification,
    load_config,
    load_pretrained,
)
from modeling.configuration import parameter_count
from modeling.elbert.keys import ELBERT_KEYS, EXIT_KEYS, INERT_KEYS, TABLE
from modeling.exit_settings import NOTHING, resolve
from modeling.loading.weights import read_weights
from tests.conftest import JSON, TINY, tiny_config, tries
from tests.hostile import KNOWN, VALUES, refused, tried
from training.checkpoints import MANIFEST, damage

BYTES = st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8"))
BYTES_OR_JSON = BYTES | JSON.map(lambda value: json.dumps(value).encode())
KEYS = st.sampled_from([*KNOWN, *ELBERT_KEYS, *INERT_KEYS]) | st.text(max_size=6)


ANY_TABLE = st.binary(max_size=300) | st.text(
    alphabet='\t\n\r"{}[]:,01.na\x00\ufeff\ud7ffé', max_size=300
).map(str.encode)


def write_any(path: Path, content: bytes | dict) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@tries(150)
@given(st.dictionaries(KEYS, VALUES, max_size=4) | BYTES_OR_JSON)
@example(b"[" * 100_000)
@example(b'{"exit_thres": ' + b"9" * 5000 + b"}")
@example({"cnt_thres": 10**400})
@example({"hidden_act": "none such"})
@example({"hidden_dropout_prob": 2.0})
@example({"num_labels": 0})
@example({"num_labels": -1})
@example({"id2label": [1]})
@example({"layer_norm_eps": "x"})
@example({"initializer_range": -1.0})
@example({"pad_token_id": 10**6})
@example({"num_attention_heads": -4})
@example({"dtype": "float99"})
@example({"": 1})
def test_anything_as_config_json(tmp_path, edits):
    """A configuration that is accepted can be built: a large one on no device."""
    content = {**TINY, **edits} if isinstance(edits, dict) else edits
    path = write_any(tmp_path / "config.json", content)
    config = tried(load_config, path)
    if refused(config):
        assert str(path) in str(config)
    elif largest(config) < 10**6:
        ElbertForSequenceClassification(config)
    elif parameter_count(config) < 10**6:
        with torch.device("meta"):
            tried(ElbertForSequenceClassification, config)


def largest(config: ElbertConfig) -> int:
    """Numbers in the largest matrix, times the layers."""
    names = "vocab_size embedding_size hidden_size intermediate_size fc_size1 fc_size2".split()
    *_, second, first = sorted(getattr(config, name) for name in names)
    layers = config.num_hidden_layers * config.inner_group_num
    return max(first * second * layers, config.max_position_embeddings * first)


@tries(150)
@given(
    st.dictionaries(st.sampled_from(sorted(EXIT_KEYS)) | KEYS, VALUES, max_size=4) | BYTES_OR_JSON
)
@example({"cnt_thres": 10**400})
def test_anything_as_exit_config_json(tmp_path, values):
    path = write_any(tmp_path / "exit_config.json", values)
    config = tiny_config(exit_config_path="exit_config.json")
    found = tried(resolve, tmp_path, TABLE, NOTHING, vars(config))
    if refused(found):
        assert path.name in str(found)
    else:
        config.update(found.values)
        config.exit_rule()
        assert all(math.isfinite(x) for x in found.values.values() if type(x) is float)


@given(BYTES | JSON.map(lambda v: json.dumps({"weight_map": v}).encode()))
def test_any_bytes_as_an_index_of_shards(tmp_path, content):
    write_any(tmp_path / "model.safetensors.index.json", content)
    save_file({"x": torch.zeros(2)}, tmp_path / "part.safetensors")
    tried(read_weights, tmp_path)


@given(BYTES)
def test_any_bytes_as_weights(tmp_path, content):
    for name in ("model.safetensors", "pytorch_model.bin"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        write_any(folder / "config.json", dict(TINY))
        write_any(folder / name, content)
        assert refused(tried(load_pretrained, folder))


@given(BYTES_OR_JSON)
def test_any_bytes_as_a_checkpoints_index(tmp_path, content):
    write_any(tmp_path / "config.json", {})
    write_any(tmp_path / MANIFEST, content)
    assert damage(tmp_path)


@tries(150)
@given(content=ANY_TABLE, name=st.sampled_from(list(TASKS)), split=st.sampled_from(["dev", "test"]))
@example(content=b"\xef\xbb\xbf\n\n", name="cola", split="dev")
def test_any_bytes_as_a_tasks_tsv(tmp_path, content, name, split):
    task = get_task(name)
    columns = [*task.text_columns, task.label_column]
    header = b"" if task.headerless and split == "dev" else "\t".join(columns).encode() + b"\n"
    for text in (content, header + content):
        write_any(tmp_path / task.files.get(split, "none"), text)
        examples = tried(read_examples, task, tmp_path, split)
        if not refused(examples):
            assert examples
            assert all(isinstance(e.text_a, str) for e in examples)


@tries(150)
@given(content=ANY_TABLE, suffix=st.sampled_from([".csv", ".tsv", ".jsonl"]))
@example(content=b"[" * 100_000, suffix=".jsonl")
@example(content=b'{"sentence1": "\\ud800", "label": 1}', suffix=".jsonl")
@example(content=b"\x00,\x00", suffix=".csv")
def test_any_bytes_as_the_users_own_file(tmp_path, content, suffix):
    header = {".csv": b"sentence1,label\n", ".tsv": b"sentence1\tlabel\n", ".jsonl": b""}[suffix]
    for text in (content, header + content):
        path = write_any(tmp_path / f"train{suffix}", text)
        task = tried(custom_task, path)
        assert refused(task) or tried(read_examples, task, "", "train")
