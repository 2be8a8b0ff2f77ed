"""Reading configurations, weights and tokenizers from wherever they come.

A source is a directory or a hub name holding an HF ALBERT (bare or with any head), an ELBERT
checkpoint of the published code or of this suite, or a BERT. BERT is ALBERT with untied layers:
as many groups as layers, an embedding as wide as the hidden state, and the identity as mapping.
"""

import json
import logging
import os
import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertTokenizer,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from modeling.configuration import (
    INERT_KEYS,
    KEY_TABLES,
    AlbertActConfig,
    ElbertConfig,
    PonderAlbertConfig,
    check_architecture,
    checked,
    key_table,
    nearest_names,
)
from modeling.elbert.model import ElbertForSequenceClassification
from modeling.errors import UserError

logger = logging.getLogger(__name__)

Tensors = dict[str, torch.Tensor]  # by name
Config = TypeVar("Config", bound=AlbertConfig)

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# What a file says of its origin, not of the model, and whether a call answers by names or a tuple:
# the scripts read names.
ORIGIN_KEYS = (
    *("model_type", "architectures", "transformers_version", "_name_or_path", "auto_map"),
    "return_dict",
)
BERT_NAMES = (
    ("attention.self.query", "attention.query"),
    ("attention.self.key", "attention.key"),
    ("attention.self.value", "attention.value"),
    ("attention.output.dense", "attention.dense"),
    ("attention.output.LayerNorm", "attention.LayerNorm"),
    ("intermediate.dense", "ffn"),
    ("output.dense", "ffn_output"),
    ("output.LayerNorm", "full_layer_layer_norm"),
)
ONE_LAYER = {
    PonderAlbertConfig: "a ponder model applies one layer at every depth",
    AlbertActConfig: "an ACT model updates every token by one layer",
}
# ELBERT's tensors that belong to the task that it was fine-tuned on.
TASK_OWN = ("albert.encoder.exit_out_layer", "exit_weights")


def find_file(source: str | Path, name: str, cache_dir: str | None = None) -> Path | None:
    """Path of file `name` of a local directory or a hub repository; None where it has none."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    if Path(source).exists():
        raise UserError(f"{source} is a file; give the directory that holds {name}")
    try:
        found = cached_file(
            str(source), name, cache_dir=cache_dir, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{source} is neither a directory nor a model that the hub can give: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return Path(found) if found else None


def read_json(path: str | Path) -> dict[str, Any]:
    """The JSON object in `path`; raises UserError naming the file and the line that is wrong."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}: not valid JSON ({error.msg}); the file is incomplete or "
            "was edited by hand: restore it, or train again"
        ) from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path}: not a JSON text in UTF-8") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds {type(value).__name__}, expected an object {{...}}")
    return value


def load_config(
    source: str | Path,
    cache_dir: str | None = None,
    config_class: type[Config] = ElbertConfig,
    **overrides: Any,
) -> Config:
    """Configuration from a `config.json`, given its path, its directory or a hub name.

    A plain ALBERT configuration gets the defaults of `config_class`, as does one of another mode.
    A BERT configuration becomes the ALBERT with untied layers, which only an ELBERT can be.
    `overrides` replace keys of the file. Raises UserError naming the file.
    """
    path = Path(source) if Path(source).is_file() else find_file(source, "config.json", cache_dir)
    if path is None:
        raise UserError(f"{source} holds no config.json; give its path with --config_name")
    values = read_json(path)
    kind = values.get("model_type")
    if kind == "bert":
        values["num_hidden_groups"] = values.get("num_hidden_layers")
        values["embedding_size"] = values.get("hidden_size")
    if config_class is not ElbertConfig and kind not in (None, "albert", *KEY_TABLES):
        raise UserError(
            f"{path}: model_type = {kind!r}: {ONE_LAYER[config_class]}, so only an ALBERT "
            "checkpoint fits; without one, give an ALBERT's config.json and --from_scratch"
        )
    return make_config(path, {**own_settings(values, config_class), **overrides}, config_class)


def make_config(path: Path, values: dict[str, Any], config_class: type[Config]) -> Config:
    """The configuration that `values` of file `path` describe; raises UserError naming the file."""
    values = {name: value for name, value in values.items() if name not in ORIGIN_KEYS}
    try:
        config = config_class(**values)
        check_architecture(config)
    # HF's own post-processing of a key of a wrong type fails in many ways.
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: {reason}") from error
    return config


def own_settings(values: dict[str, Any], config_class: type[Config]) -> dict[str, Any]:
    """A configuration without its origin, and without the keys of another mode.

    Modes share names: ELBERT's exit_thres is an entropy, a ponder model's a halting CDF.
    """
    kind, foreign = str(values.get("model_type")), set(ORIGIN_KEYS)
    if "thres_name" in values and kind not in KEY_TABLES:
        kind = ElbertConfig.model_type  # published ELBERT configurations call themselves ALBERT's
    if kind in KEY_TABLES and kind != config_class.model_type:
        foreign |= set(KEY_TABLES[kind].keys)
    return {name: value for name, value in values.items() if name not in foreign}


def trained_task(source: str | Path, cache_dir: str | None = None) -> str | None:
    """The task that a checkpoint says it was fine-tuned on."""
    path = find_file(source, "config.json", cache_dir)
    return read_json(path).get("finetuning_task") if path else None


def read_weights(source: str | Path, cache_dir: str | None = None) -> Tensors:
    """All tensors of a checkpoint by name; raises UserError when there are none to read."""
    tensors: Tensors = {}
    for path in weight_files(source, cache_dir):
        tensors.update(read_tensor_file(path))
    return tensors


def weight_files(source: str | Path, cache_dir: str | None = None) -> list[Path]:
    """The files with the tensors of a checkpoint; raises UserError when one or all are missing."""
    for name in WEIGHT_FILES:
        path = find_file(source, name, cache_dir)
        if path is None:
            continue
        if not name.endswith(".index.json"):
            return [path]
        shards = read_json(path).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(x, str) for x in shards.values()):
            raise UserError(f"{path}: weight_map must name the file of every tensor")
        shards = sorted(set(shards.values()))
        paths = [find_file(source, Path(shard).name, cache_dir) for shard in shards]
        if None in paths:
            raise UserError(f"{path} names {shards[paths.index(None)]}, which is missing")
        return paths
    raise UserError(
        f"no weights in {source}: looked for {', '.join(WEIGHT_FILES)}. Give a directory with "
        "pre-trained weights (TensorFlow checkpoints: convert them first with "
        "convert_albert_original_tf_checkpoint_to_pytorch.py), or --from_scratch"
    )


def read_tensor_file(path: Path) -> Tensors:
    """Tensors of a .safetensors or .bin file. A .bin is read as tensors only: no code is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds something other than tensors, which could run code: refused. "
            "Ask its author for a safetensors file"
        ) from error
    except Exception as error:  # what is not a checkpoint fails in every way there is
        raise UserError(f"{path} is damaged or not a checkpoint: {error}") from error
    if not isinstance(loaded, dict) or not all(
        isinstance(tensor, torch.Tensor) for tensor in loaded.values()
    ):
        raise UserError(f"{path} is not a state dict (tensors by name)")
    return dict(loaded)


def suite_names(tensors: Tensors) -> Tensors:
    """The tensors under this suite's names (DESIGN: the published ones, `albert.*`).

    Raises UserError for weights that are neither ALBERT's nor BERT's.
    """
    tensors = {modern_name(name): tensor for name, tensor in tensors.items()}
    if any(".attention.self.query." in name for name in tensors):
        return bert_as_albert(tensors)
    if not any(name.endswith("embedding_hidden_mapping_in.weight") for name in tensors):
        raise UserError(
            "the weights are neither ALBERT's nor BERT's; their first tensors are "
            + ", ".join(sorted(tensors)[:4])
        )
    return {
        f"albert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name: t
        for name, t in tensors.items()
    }


def modern_name(name: str) -> str:
    """Undo `module.` of DataParallel and TensorFlow's gamma/beta."""
    name = name.removeprefix("module.")
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))


def bert_as_albert(tensors: Tensors) -> Tensors:
    """BERT's tensors as one ALBERT layer group a layer."""
    renamed = {}
    for full_name, tensor in tensors.items():
        name = full_name.removeprefix("bert.")
        layer = re.match(r"encoder\.layer\.(\d+)\.", name)
        if layer:
            inner = name[layer.end() :]
            for old, new in BERT_NAMES:
                if inner.startswith(old + "."):
                    inner = new + inner[len(old) :]
                    break
            name = f"albert.encoder.albert_layer_groups.{layer[1]}.albert_layers.0.{inner}"
        elif name.startswith("embeddings."):
            name = f"albert.{name}"
        elif name.startswith("pooler.dense."):
            name = f"albert.pooler.{name.removeprefix('pooler.dense.')}"
        renamed[name] = tensor
    size = tensors_of_words(renamed).shape[1]
    renamed["albert.encoder.embedding_hidden_mapping_in.weight"] = torch.eye(size)
    renamed["albert.encoder.embedding_hidden_mapping_in.bias"] = torch.zeros(size)
    return renamed


def tensors_of_words(tensors: Tensors) -> torch.Tensor:
    words = tensors.get("albert.embeddings.word_embeddings.weight")
    if words is None:
        raise UserError("the weights hold no word embeddings")
    return words


@dataclass
class LoadReport:
    """What became of a checkpoint's tensors, by name."""

    source: str
    loaded: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    initialised: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Three lines for the user."""
        return [
            f"Weights loaded from {self.source}: {len(self.loaded)} tensors",
            f"Weights ignored: {in_brief(self.ignored)}",
            f"Weights newly initialised: {in_brief(self.initialised)}",
        ]


def in_brief(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return (", ".join(names[:6]) or "none") + more


def load_pretrained(
    source: str | Path,
    config: ElbertConfig | None = None,
    cache_dir: str | None = None,
    other_task: bool = False,
) -> tuple[ElbertForSequenceClassification, LoadReport]:
    """An ELBERT with the weights of `source` (see the module's docstring), and what was loaded.

    `config` defaults to the source's own. `other_task`: the source was fine-tuned on another task,
    so its exit classifiers and W are left out. Raises UserError when the weights have another
    shape than the configuration asks for, or none of a layer's weights are there.
    """
    config = config or load_config(source, cache_dir)
    model = ElbertForSequenceClassification(config)
    tensors = read_as(suite_names, source, cache_dir)
    adopt_classifier(
        tensors, model.state_dict(), "classifier", "albert.encoder.exit_out_layer.classifier"
    )
    heads = ("albert.pooler.", *TASK_OWN)
    return model, adopt(model, tensors, source, heads, TASK_OWN if other_task else ())


def read_as(
    rename: Callable[[Tensors], Tensors], source: str | Path, cache_dir: str | None = None
) -> Tensors:
    """A checkpoint's tensors under the names that `rename` gives; errors name the source."""
    try:
        return rename(read_weights(source, cache_dir))
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def adopt_classifier(tensors: Tensors, wanted: Tensors, old: str, new: str) -> None:
    """A fine-tuned model's `old` classifier becomes `new`, if the number of labels is the same."""
    for part in ("weight", "bias"):
        theirs, ours = f"{old}.{part}", f"{new}.{part}"
        if theirs in tensors and ours in wanted and tensors[theirs].shape == wanted[ours].shape:
            tensors.setdefault(ours, tensors.pop(theirs))


def adopt(
    model: nn.Module,
    tensors: Tensors,
    source: str | Path,
    heads: tuple[str, ...],
    unwanted: tuple[str, ...] = (),
) -> LoadReport:
    """Copy into `model` the tensors that it has.

    heads: what the names begin with that a checkpoint may lack: these stay newly initialised.
    unwanted: what the names begin with that are left out even so.

    Raises UserError when tensors have another shape than the model's, or others are missing.
    """
    wanted = model.state_dict()
    report = LoadReport(str(source))
    report.loaded = [n for n in wanted if n in tensors and not n.startswith(unwanted)]
    report.ignored = [name for name in tensors if name not in report.loaded]
    report.initialised = [name for name in wanted if name not in report.loaded]
    for name in report.loaded:
        found, expected = tuple(tensors[name].shape), tuple(wanted[name].shape)
        if found != expected:
            raise UserError(
                f"{source}: {name} has shape {found}, the configuration asks for {expected}; "
                "is the config.json of another model, or the task one of another number of labels?"
            )
    lost = [name for name in report.initialised if not name.startswith(heads)]
    if lost:
        raise UserError(
            f"{source}: no weights for {in_brief(lost)}, which the configuration asks for; "
            "compare num_hidden_groups and inner_group_num with the checkpoint's own config.json"
        )
    with torch.no_grad():
        for name in report.loaded:
            wanted[name].copy_(tensors[name])
    return report


def load_tokenizer(
    source: str | Path, do_lower_case: bool = True, cache_dir: str | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer beside a checkpoint: one saved whole, ALBERT's spiece.model, or a vocab.txt.

    A tokenizer saved whole (`tokenizer.json`) keeps its own casing. Raises UserError when there
    is none.
    """
    whole = ("tokenizer.json", "tokenizer_config.json")
    if all(find_file(source, name, cache_dir) for name in whole):
        return AutoTokenizer.from_pretrained(str(source), cache_dir=cache_dir)
    for name, kind in (("spiece.model", AlbertTokenizer), ("vocab.txt", BertTokenizer)):
        if find_file(source, name, cache_dir):
            try:
                return kind.from_pretrained(
                    str(source), do_lower_case=do_lower_case, cache_dir=cache_dir
                )
            except (TypeError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"{source}: {name} is damaged, or lacks the special pieces <pad>, <unk>, "
                    f"[CLS], [SEP] and [MASK] ({str(error).splitlines()[0]}); run_pretraining.py "
                    "--train_tokenizer makes one from text"
                ) from error
    raise UserError(
        f"no tokenizer in {source}: looked for tokenizer.json, spiece.model and vocab.txt; "
        "give its directory with --tokenizer_name"
    )


def apply_exit_config(
    config: ElbertConfig | PonderAlbertConfig, model_dir: str | Path
) -> dict[str, Any]:
    """Override `config`'s exit keys by those of the file that `exit_config_path` names.

    A relative path is relative to `model_dir`. No path, an empty file and `{}` override nothing; a
    path to nothing is one warning, since published configs carry their author's paths. Returns
    the overrides. Raises UserError for an unknown key or a value out of range.
    """
    if not config.exit_config_path:
        return {}
    path = Path(model_dir) / config.exit_config_path
    if not os.path.exists(path):  # unlike Path.exists, no error for a name too long
        logger.warning("exit_config_path %s does not exist: no overrides", path)
        return {}
    if path.is_file() and not path.read_bytes().strip():
        return {}
    overrides, (known, exit_keys) = {}, key_table(config.model_type)
    for name, value in read_json(path).items():
        if name in exit_keys:
            try:
                overrides[name] = checked(name, value, exit_keys)
            except UserError as error:
                raise UserError(f"{path}: {error}") from error
        elif name not in known and name not in INERT_KEYS:
            raise UserError(
                f"{path}: unknown key {name} = {value!r}; " + nearest_names(name, list(exit_keys))
            )
    before = config.exit_keys()
    config.update(overrides)
    try:
        config.exit_rule()
    except UserError as error:
        config.update(before)
        raise UserError(f"{path}: {error}") from error
    return overrides
