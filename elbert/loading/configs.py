"""Reading configurations of encoders and of every mode, and the overrides of exit keys."""

from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub.errors import StrictDataclassError
from transformers import AlbertConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from elbert_base.errors import UserError
from elbert_base.exit_settings import KeyValues, resolve
from elbert_base.families import FAMILIES, SKIP_PADDING
from elbert_base.files import find_file, local_folder, read_json
from elbert_base.keys import mode_name

from ..configuration import (
    ALBERT_KEYS,
    AdaptiveConfig,
    ElbertConfig,
    check_architecture,
    config_class_of,
)

Config = TypeVar("Config", bound=AlbertConfig)
OwnConfig = TypeVar("OwnConfig", bound=AdaptiveConfig)

# What a file says of its origin, not of the model; and how a call computes and answers. (Some of
# HF's names of attentions load code: "organisation/kernel".)
ORIGIN_KEYS = tuple(
    "model_type architectures transformers_version _name_or_path auto_map return_dict "
    "attn_implementation _attn_implementation _attn_implementation_internal "
    "experts_implementation _experts_implementation _experts_implementation_internal".split()
)


def mode_in(folder: str | Path) -> str:
    """Name the mode of the model in `folder`, ELBERT's by default."""
    path = find_file(folder, "config.json")
    return mode_name(read_json(path).get("model_type") if path else None)


def load_config(
    source: str | Path,
    config_class: type[OwnConfig] = ElbertConfig,
    settings: KeyValues | None = None,
    **overrides: Any,
) -> OwnConfig:
    """Read a `config.json`, given its path, its directory or a hub name.

    A plain ALBERT configuration gets the defaults of `config_class`, as does one of another mode.
    One of a family becomes the ALBERT with untied layers, which only an ELBERT can be.
    Its exit keys are `settings`, by default those that `exit_settings.resolve` finds; `overrides`
    replace any key, and as the caller's own may name an exit_config_path anywhere. Raises UserError
    naming the file.
    """
    source = local_folder(source, weights=False)
    path = source if source.is_file() else find_file(source, "config.json")
    if path is None:
        raise UserError(
            f"{source} holds no config.json: give the folder of a whole model (docs/sharing.md "
            "makes one of a layer alone), or the path of a config.json, for which run_glue.py has "
            "--config_name"
        )
    values = read_json(path)
    kind = values.get("model_type")
    if kind not in (None, "albert", *FAMILIES) and not config_class_of(kind):
        raise UserError(
            f"{path}: model_type = {kind!r}: only the weights of ALBERT, BERT, RoBERTa, ELECTRA "
            "and this suite's own models can be read; another family's layers would be lost"
        )
    values = {**own_settings(as_albert(values), config_class), **overrides}
    if "num_labels" in overrides and len(values.get("id2label") or ()) != overrides["num_labels"]:
        values |= {"id2label": None, "label2id": None}  # of other classes
    own_file = "exit_config_path" in overrides
    settings = settings or resolve(path, config_class.table, config=values, trusted=own_file)
    return make_config(path, {**values, **settings.values, **overrides}, config_class)


def as_albert(values: dict[str, Any]) -> dict[str, Any]:
    """Turn a family's config.json into that of the ALBERT that it is; others stay as they are.

    What is left out has HF's default of the family.
    """
    kind = values.get("model_type")
    if kind not in FAMILIES:
        return values
    defaults = CONFIG_MAPPING[kind]().to_dict()
    shared = [name for name in defaults if name in ALBERT_KEYS or name == "pad_token_id"]
    values = {**{name: defaults[name] for name in shared}, **values}
    values["eos_token_id"] = None  # no family takes what follows for a second segment
    values["num_hidden_groups"] = values["num_hidden_layers"]
    if "embedding_size" not in shared:
        values["embedding_size"] = values["hidden_size"]
    if kind in SKIP_PADDING:
        positions = values["max_position_embeddings"] - values["pad_token_id"] - 1
        values |= {"max_position_embeddings": positions, "positions_skip_padding": True}
    return values


def make_config(path: Path, values: dict[str, Any], config_class: type[Config]) -> Config:
    """Make the configuration of file `path` from its `values`; raises UserError naming the file."""
    values = {name: value for name, value in values.items() if name not in ORIGIN_KEYS}
    try:
        config = config_class(**values)
        check_architecture(config)
    # HF's own post-processing of a key of a wrong type fails in many ways.
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: {reason}") from error
    return config


def own_settings(values: dict[str, Any], config_class: type[AdaptiveConfig]) -> dict[str, Any]:
    """Drop a configuration's origin, and the keys of another mode.

    Modes share names: ELBERT's exit_thres is an entropy, a ponder model's a halting CDF.
    """
    written_by = config_class_of(values.get("model_type"))
    foreign = set(ORIGIN_KEYS)
    if "thres_name" in values and not written_by:
        written_by = ElbertConfig  # published ELBERT configurations call themselves ALBERT's
    if written_by and written_by.model_type != config_class.model_type:
        foreign |= set(written_by.table.keys)
    return {name: value for name, value in values.items() if name not in foreign}


def trained_labels(directory: str | Path) -> list[str]:
    """Return the names of a trained model's classes; [] for one that predicts a value."""
    config = load_config(directory)
    labels: dict[Any, str] = config.id2label or {}
    return [labels[number] for number in sorted(labels)] if config.label_count > 1 else []
