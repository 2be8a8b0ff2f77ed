"""Files from anywhere: whatever they hold, a user sees one of the project's errors or an answer."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import training.checkpoints as checkpointing
from modeling import (
    AlbertActConfig,
    ElbertConfig,
    PonderAlbertConfig,
    UserError,
    apply_exit_config,
    load_config,
    load_pretrained,
)
from modeling.configuration import parameter_count
from modeling.keys import EXIT_KEYS
from modeling.loading.weights import read_weights
from tests.conftest import JSON, TINY, tiny_config, tiny_model
from training.checkpoints import damage, find_checkpoint, read_state

BYTES = st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8"))
KEYS = sorted(json.loads(tiny_config().to_json_string(use_diff=False)))


def tried(function, *arguments):
    """The function's answer; None when it refused in the project's words."""
    try:
        return function(*arguments)
    except UserError:
        return None


def write_any(path: Path, content: bytes | dict) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@given(BYTES | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_as_config_json(tmp_path, content):
    path = write_any(tmp_path / "config.json", content)
    config = tried(load_config, path)
    assert config is None or isinstance(config, ElbertConfig)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=3))
def test_any_value_of_any_key_of_config_json(tmp_path, edits):
    """A configuration that is accepted can be built: on no device, so that none is exhausted."""
    path = write_any(tmp_path / "config.json", {**TINY, **edits})
    config = tried(load_config, path)
    if config is not None and parameter_count(config) < 10**6:
        with torch.device("meta"):
            tried(type(tiny_model()), config)


@pytest.mark.parametrize("kind", [ElbertConfig, PonderAlbertConfig, AlbertActConfig])
@pytest.mark.parametrize(
    "edits",
    [
        {"hidden_size": 10**12},
        {"hidden_size": 2**24, "num_attention_heads": 1},
        {"vocab_size": 2**24, "embedding_size": 2**20},
        {"intermediate_size": 2**24, "hidden_size": 4096, "num_attention_heads": 1},
    ],
)
def test_a_huge_dimension_is_refused_before_anything_is_allocated(kind, edits):
    with pytest.raises(UserError, match=next(iter(edits))):
        kind(**{**TINY, **edits})


def test_a_million_untied_layers_are_refused():
    with pytest.raises(UserError, match="1000000 untied layers"):
        tiny_config(num_hidden_layers=10**6, num_hidden_groups=10**6)


@given(BYTES | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_as_exit_config_json(tmp_path, content):
    write_any(tmp_path / "exit_config.json", content)
    config = tiny_config(exit_config_path="exit_config.json")
    overrides = tried(apply_exit_config, config, tmp_path)
    assert overrides is None or set(overrides) <= set(EXIT_KEYS)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(sorted(EXIT_KEYS)), JSON, min_size=1))
def test_any_value_of_any_key_of_exit_config_json(tmp_path, values):
    write_any(tmp_path / "exit_config.json", values)
    config = tiny_config(exit_config_path="exit_config.json")
    if tried(apply_exit_config, config, tmp_path) is not None:
        assert all(
            not isinstance(x, float) or math.isfinite(x) for x in config.exit_keys().values()
        )


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
        assert tried(load_pretrained, folder) is None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A checkpoint with consistent checksums whose state any test may replace."""
    folder = tmp_path_factory.mktemp("run") / "checkpoint-4"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / checkpointing.OPTIMIZER).write_bytes(b"x")
    return folder


@given(BYTES | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_as_a_checkpoints_index(checkpoint, content):
    write_any(checkpoint / checkpointing.STATE, {})
    write_any(checkpoint / checkpointing.MANIFEST, content)
    assert damage(checkpoint)
    assert tried(find_checkpoint, checkpoint.parent, "latest") is None


@given(st.dictionaries(st.sampled_from(["config.json", "../x", "/etc/passwd", "a\0b"]), JSON))
def test_any_entry_of_a_checkpoints_index(checkpoint, extra):
    write_any(checkpoint / checkpointing.STATE, {})
    names = (checkpointing.STATE, checkpointing.OPTIMIZER)
    entries = {name: checkpointing.file_stamp(checkpoint / name) for name in names}
    write_any(checkpoint / checkpointing.MANIFEST, {**entries, **extra})
    reason = damage(checkpoint)
    assert reason if extra else reason is None


@given(BYTES | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_as_a_checkpoints_state(checkpoint, content):
    write_any(checkpoint / checkpointing.STATE, content)
    state = tried(read_state, checkpoint)
    assert state is None or isinstance(state, dict)
