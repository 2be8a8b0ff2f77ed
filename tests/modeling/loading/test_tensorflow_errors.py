"""What goes wrong with a TensorFlow checkpoint: each a line that names the file or key."""

from pathlib import Path

import numpy as np
import pytest

from tests.commands import no_file_above
from tests.conftest import contents
from tests.tf_albert import (
    CLASSIFIER,
    MLM,
    SOP,
    albert,
    random_arrays,
    save_by_name,
    save_in_two_shards,
    write_config,
)


def refusal(convert, checkpoint, config, target) -> str:
    """The one line of an error; nothing is written."""
    outcome = convert(checkpoint, config, target)
    assert outcome.status == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert not target.exists()
    return outcome.err


@pytest.fixture(scope="module")
def saved(tf, tmp_path_factory):
    """A whole checkpoint with its configuration, as files by name."""
    folder = tmp_path_factory.mktemp("tf")
    save_in_two_shards(tf, folder / "model.ckpt", random_arrays(albert(MLM, SOP)))
    write_config(folder)
    return contents(folder)


SHARD = "model.ckpt.data-00001-of-00002"


def restore(saved: dict[str, bytes], folder: Path) -> tuple[Path, Path, Path]:
    """The arguments of `convert`, for a copy of `saved`."""
    for name, content in saved.items():
        (folder / name).write_bytes(content)
    return folder / "model.ckpt", folder / "albert_config.json", folder / "out"


@pytest.mark.tf
def test_two_shards_load(convert, saved, tmp_path):
    assert SHARD in saved
    assert convert(*restore(saved, tmp_path)).status == 0


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


FETCH = ("model.ckpt", "damaged", "fetch all of them again")
INDEX = "model.ckpt.index"


@pytest.mark.tf
@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        (SHARD, lambda content: b"", FETCH),
        (SHARD, lambda content: content[:100], FETCH),
        (SHARD, lambda content: content[: len(content) // 2], FETCH),
        (SHARD, lambda content: content[: int(0.99 * len(content))], FETCH),
        (SHARD, flipped, ("hecksum",)),
        (SHARD, None, (SHARD,)),
        (INDEX, lambda content: b"", (INDEX, "damaged")),
        (INDEX, lambda content: b"garbage", (INDEX, "damaged")),
        (INDEX, lambda content: b"{}" * 100, (INDEX, "damaged")),
        (INDEX, lambda content: content[: len(content) // 2], (INDEX, "damaged")),
    ],
)
def test_a_damaged_or_missing_file_is_named(convert, saved, tmp_path, name, harm, words):
    arguments = restore(saved, tmp_path)
    if harm:
        (tmp_path / name).write_bytes(harm(saved[name]))
    else:
        (tmp_path / name).unlink()
    message = refusal(convert, *arguments)
    for word in words:
        assert (str(tmp_path / word) if word == "model.ckpt" else word) in message


@pytest.mark.parametrize("name", ["albert_config.json", "nowhere", "pytorch_model.bin"])
def test_a_file_that_is_no_checkpoint(convert, tmp_path, name):
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    config = write_config(tmp_path)
    message = refusal(convert, tmp_path / name, config, tmp_path / "out")
    assert f"{tmp_path / name} is no TensorFlow checkpoint" in message
    assert "model.ckpt-best" in message


@pytest.mark.tf
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 64}, ["has shape (32,)", "hidden_size = 64", "(64,)"]),
        ({"vocab_size": 91}, ["word_embeddings has shape (90, 16)", "vocab_size = 91"]),
        ({"intermediate_size": 24}, ["ffn_1/intermediate", "intermediate_size = 24"]),
        ({"max_position_embeddings": 512}, ["position_emb", "max_position_embeddings = 512"]),
        ({"embedding_size": 128}, ["embedding_size = 128", "albert_config.json"]),
        ({"num_hidden_groups": 2}, ["num_hidden_groups = 2", "has 1"]),
        ({"inner_group_num": 2}, ["inner_group_num = 2", "has 1"]),
        ({"num_attention_heads": 5}, ["num_attention_heads = 5"]),
        ({"hidden_act": "swoosh"}, ["swoosh", "allowed"]),
        ({"hidden_size": "wide"}, ["hidden_size"]),
        ({"vocab_size": 2**40}, ["vocab_size", "allowed"]),
    ],
)
def test_a_configuration_of_another_model_names_the_key(convert, saved, tmp_path, changes, words):
    checkpoint, _, target = restore(saved, tmp_path)
    message = refusal(convert, checkpoint, write_config(tmp_path, **changes), target)
    for word in (str(checkpoint), "albert_config.json", *words):
        assert word in message


@pytest.mark.parametrize("content", ["{", "[1]", "not JSON", ""])
def test_a_configuration_that_is_no_json(convert, tmp_path, content):
    (tmp_path / "model.index").touch()
    (tmp_path / "config.json").write_text(content)
    arguments = (tmp_path / "model", tmp_path / "config.json", tmp_path / "out")
    assert str(tmp_path / "config.json") in refusal(convert, *arguments)


UNKNOWN = dict.fromkeys(("cls/squad/output_bias", "my/weights"), np.ones(2, "float32"))
PRE_TRAINING = albert(MLM, SOP)


@pytest.mark.tf
@pytest.mark.parametrize(
    ("names", "changes", "config", "words"),
    [
        (PRE_TRAINING, UNKNOWN, {}, ["2 variables: cls/squad/output_bias, my/weights"]),
        (PRE_TRAINING, "bert/pooler/dense/bias", {}, ["albert.pooler.bias"]),
        (
            PRE_TRAINING,
            "bert/embeddings/word_embeddings",
            {},
            ["albert.embeddings.word_embeddings.weight"],
        ),
        (
            PRE_TRAINING,
            "bert/encoder/embedding_hidden_mapping_in/kernel",
            {},
            ["embedding_hidden_mapping_in"],
        ),
        (
            PRE_TRAINING,
            "cls/predictions/transform/LayerNorm/beta",
            {},
            ["predictions.LayerNorm.bias"],
        ),
        (albert(SOP, CLASSIFIER), {}, {}, ["classifier, sop_classifier"]),  # no model has both
        (albert(CLASSIFIER), {}, {"num_labels": 2}, ["num_labels = 2", "(3"]),
        (albert(CLASSIFIER), {}, {"id2label": {0: "no", 1: "yes"}}, ["num_labels = 2", "(3"]),
    ],
)
def test_variables_of_no_model_are_named(tf, convert, tmp_path, names, changes, config, words):
    """`changes` are variables that no model has, or the one that is missing."""
    arrays = random_arrays(names)
    if isinstance(changes, str):
        arrays.pop(changes)
    else:
        arrays |= changes
    prefix = save_by_name(tf, tmp_path / "m", arrays)
    message = refusal(convert, prefix, write_config(tmp_path, **config), tmp_path / "out")
    for word in words:
        assert word in message


def test_a_file_is_not_overwritten_by_a_directory(convert, tmp_path):
    target = tmp_path / "model.safetensors"
    target.write_text("mine")
    outcome = convert(tmp_path / "m", tmp_path / "c.json", target)
    assert outcome.status == 2
    assert "ends in .bin" in outcome.err
    assert target.read_text() == "mine"


@pytest.mark.tf
@pytest.mark.parametrize("target", ["out", "out.bin"])
def test_a_failed_write_leaves_what_was_there(convert, saved, tmp_path, target):
    checkpoint, config, _ = restore(saved, tmp_path)
    assert convert(checkpoint, config, tmp_path / target).status == 0
    before = contents(tmp_path)
    with no_file_above(10_000):  # bytes; the weights have 50 000
        outcome = convert(checkpoint, config, tmp_path / target)
    assert outcome.status == 2
    assert f"cannot write {tmp_path / target}" in outcome.err
    assert "File too large" in outcome.err
    assert contents(tmp_path) == before
