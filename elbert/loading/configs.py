"""Read configurations of encoders and of every mode, and the overrides of exit keys."""

from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub.errors import StrictDataclassError
from transformers import AlbertConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from elbert_base.errors import UserError
from elbert_base.exit_settings import KeyValues, resolve
from elbert_base.families import (
    CONFIG_NAMES,
    FAMILIES,
    HEAD_ACTIVATIONS,
    NO_SEGMENTS,
    SKIP_PADDING,
    check_family,
    family_of,
)
from elbert_base.files import find_file, has_weights, local_folder, read_json
from elbert_base.keys import mode_name
from elbert_base.labels import stored_labels

from ..configuration import (
    ALBERT_KEYS,
    AdaptiveConfig,
    ElbertConfig,
    check_architecture,
    config_class_of,
)
from .tensors import tensor_names

ConfigT = TypeVar("ConfigT", bound=AlbertConfig)
AdaptiveConfigT = TypeVar("AdaptiveConfigT", bound=AdaptiveConfig)

# Keys that say where a file comes from, and how a call computes and answers, but nothing of the
# model. (Some of HF's names of attentions load code: "organisation/kernel".)
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
    config_class: type[AdaptiveConfigT] = ElbertConfig,
    settings: KeyValues | None = None,
    **overrides: Any,
) -> AdaptiveConfigT:
    """Read a model's configuration, with the exit keys that are in force in its folder.

        config = elbert.load_config("out/reviews/model", exit_thres=0.3)

    Keys that the file lacks get the defaults of `config_class`; so do the exit keys of a model of
    another mode. The configuration of a BERT, or of another family in `elbert_base/families.py`,
    becomes that of an ALBERT whose layers have weights of their own, which only ELBERT supports.

    Args:
        source: path of a `config.json`, folder of a model, or hub name.
        config_class: class of the configuration, by the mode.
        settings: exit keys; default: those that `exit_settings.resolve` finds in the folder.
        overrides: values for any keys, which replace those of the file. An exit_config_path among
            them may lead anywhere.

    Raises:
        UserError: there is no such file, it belongs to a family that is not supported, or a value
            is out of range; the message names the file.
    """
    source = local_folder(source, weights=False)
    path = source if source.is_file() else find_file(source, "config.json")
    if path is None:
        if (source / "model" / "config.json").is_file():
            raise UserError(f"{source} has no config.json: give {source / 'model'}")
        raise UserError(
            f"{source} has no config.json: give the folder of a whole model (docs/sharing.md makes "
            "one from a single layer), or the path of a config.json, for which run_glue.py has "
            "--config_name"
        )
    values = read_encoder_config(path)
    check_family(path, values.get("model_type"))
    if values.get("id2label") is None and values.get("label2id"):
        values["id2label"] = dict(enumerate(stored_labels(values)))  # HF would take no names
    values = {**drop_foreign_keys(as_albert(values), config_class), **overrides}
    label_count = len(values.get("id2label") or ())
    if "num_labels" in overrides and overrides["num_labels"] != label_count:
        values |= {"id2label": None, "label2id": None}  # they name other classes
    if settings is None:
        is_callers_file = "exit_config_path" in overrides
        settings = resolve(path, config_class.table, config=values, trusted=is_callers_file)
    return make_config(path, {**values, **settings.values, **overrides}, config_class)


def read_encoder_config(path: Path) -> dict[str, Any]:
    """Read a config.json; where it has no model_type, as older ones, the weights beside it tell.

    Without weights it is taken for an ALBERT's.
    """
    values = read_json(path)
    if values.get("model_type") is None and has_weights(path.parent):
        values["model_type"] = family_of(tensor_names(path.parent), values)
    return values


def as_albert(values: dict[str, Any]) -> dict[str, Any]:
    """Turn a family's config.json into that of the ALBERT that the encoder is.

    Keys that the file leaves out have HF's defaults of the family. The values of any other
    configuration are returned as they are.
    """
    family = values.get("model_type")
    if family not in FAMILIES:
        return values
    names = CONFIG_NAMES.get(str(family), {})
    values = {names.get(name, name): value for name, value in values.items()}
    family_defaults = CONFIG_MAPPING[family]().to_dict()
    defaults = {names.get(name, name): value for name, value in family_defaults.items()}
    shared_names = [name for name in defaults if name in ALBERT_KEYS or name == "pad_token_id"]
    values = {**{name: defaults[name] for name in shared_names}, **values}
    values["head_activation"] = HEAD_ACTIVATIONS.get(family, "tanh")
    # These encoders do not take what follows a separator for a second segment.
    values["eos_token_id"] = None
    values["num_hidden_groups"] = values["num_hidden_layers"]
    if "embedding_size" not in shared_names:
        values["embedding_size"] = values["hidden_size"]
    if family in NO_SEGMENTS:
        values["type_vocab_size"] = 2
    if family in SKIP_PADDING:
        # The rows up to padding's own serve no token; `weights.to_untied_albert` drops them.
        values["max_position_embeddings"] -= values["pad_token_id"] + 1
        values["positions_skip_padding"] = True
    return values


def make_config(path: Path, values: dict[str, Any], config_class: type[ConfigT]) -> ConfigT:
    """Make the configuration of file `path` from its `values`; raises UserError with the file."""
    values = {name: value for name, value in values.items() if name not in ORIGIN_KEYS}
    try:
        config = config_class(**values)
        check_architecture(config)
    # HF's own processing of a value of a wrong type fails in many ways.
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: {reason}") from error
    return config


def drop_foreign_keys(values: dict[str, Any], config_class: type[AdaptiveConfig]) -> dict[str, Any]:
    """Leave out the keys of a configuration's origin, and those of another mode than its class.

    Modes share names: ELBERT's exit_thres is an entropy, a ponder model's a halting CDF.
    """
    written_by = config_class_of(values.get("model_type"))
    if written_by is None and "thres_name" in values:
        written_by = ElbertConfig  # published ELBERT configurations call themselves ALBERT's
    foreign_keys = set(ORIGIN_KEYS)
    if written_by is not None and written_by.model_type != config_class.model_type:
        foreign_keys |= set(written_by.table.keys)
    return {name: value for name, value in values.items() if name not in foreign_keys}


def label_names(config: AlbertConfig) -> list[str]:
    """List the names of a model's classes, in the order of its logits."""
    names: Any = config.id2label or {}  # HF converts its keys to numbers
    return [names[number] for number in sorted(names)]


def trained_labels(directory: str | Path) -> list[str]:
    """List the names of a trained model's classes; [] for a model that predicts a value."""
    config = load_config(directory)
    return label_names(config) if config.label_count > 1 else []
