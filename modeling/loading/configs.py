"""Read configurations of encoders and of every mode, and the overrides of exit keys."""

import io
import pickletools
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub.errors import StrictDataclassError
from transformers import AlbertConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ..configuration import (
    ALBERT_KEYS,
    AdaptiveConfig,
    ElbertConfig,
    check_architecture,
    config_class_of,
)
from ..errors import UserError
from ..exit_settings import RESULTS_FILE, TRAINING_FILES, KeyValues, resolve
from ..families import (
    CONFIG_NAMES,
    FAMILIES,
    FIXED_VALUES,
    HEAD_ACTIVATIONS,
    NO_SEGMENTS,
    SKIP_PADDING,
    check_computation,
    check_family,
    family_of,
    is_general,
)
from ..files import (
    LARGEST_JSON,
    check_no_adapter,
    find_file,
    has_weights,
    local_folder,
    read_json,
)
from ..hf_layers.configs import as_elbert
from ..keys import mode_name, nearest_names
from ..labels import (
    GLUE_LABELS,
    are_placeholders,
    check_characters,
    shown,
    stored_labels,
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
    another mode. The configuration of a BERT, or of another family in `modeling/families.py`,
    becomes that of an ALBERT whose layers have weights of their own; any other encoder's becomes
    that of an ELBERT around transformers' layers (`hf_layers/`). Only ELBERT supports either.

    Args:
        source: path of a `config.json`, folder of a model, or hub name.
        config_class: class of the configuration, by the mode.
        settings: exit keys; default: those that `exit_settings.resolve` finds in the folder.
        overrides: values for keys of `config_class`, which replace those of the file. An
            exit_config_path among them may lead anywhere.

    Raises:
        UserError: there is no such file, it belongs to a family that is not supported, a value is
            out of range or asks for something that is not computed here, the folder holds an
            adapter, or the labels are in another order than the training's; the message names the
            file. Or there is no key of the name of an override.
    """
    check_names(overrides, config_class)
    source = local_folder(source, weights=False)
    if source.is_dir():
        check_no_adapter(source)
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
    check_label_order(path, values)
    if values.get("id2label") is None and values.get("label2id"):
        values["id2label"] = dict(enumerate(stored_labels(values)))  # HF would take no names
    published_labels = labels_of_published_code(path.parent, values)
    if published_labels:
        values["id2label"] = dict(enumerate(published_labels))
    values = {**drop_foreign_keys(as_suite(path, values), config_class), **overrides}
    label_count = len(values.get("id2label") or ())
    if "num_labels" in overrides and overrides["num_labels"] != label_count:
        values |= {"id2label": None, "label2id": None}  # they name other classes
    if settings is None:
        is_callers_file = "exit_config_path" in overrides
        settings = resolve(path, config_class.table, config=values, trusted=is_callers_file)
    config = make_config(path, {**values, **settings.values, **overrides}, config_class)
    check_characters(label_names(config), path)
    return config


# Keys of a configuration that have no attribute until a file or a caller gives them.
OPTIONAL_KEYS = ("num_labels", "finetuning_task", "exit_config_path")


def check_names(keys: Mapping[str, Any], config_class: type[AdaptiveConfig]) -> None:
    """Raise UserError for a key that no configuration of the class has."""
    attributes = config_class().to_dict().keys() - {*ORIGIN_KEYS}
    names = sorted({*attributes, *config_class.table.keys, *OPTIONAL_KEYS})
    for name, value in keys.items():
        if name not in names:
            raise UserError(f"unknown key {name} = {value!r}; {nearest_names(name, names)}")


def labels_of_published_code(folder: Path, values: Mapping[str, Any]) -> Sequence[str]:
    """Name the classes of a model that ELBERT's published code trained; [] for any other.

    The task is that of its configuration, of its training_args.bin, or of the folder, which the
    published commands name after it.

    values: the content of the folder's config.json.
    """
    names = stored_labels(values)
    is_published = values.get("model_type") == "albert" and "thres_name" in values
    if not is_published or not has_weights(folder) or not are_placeholders(names):
        return []
    count = len(names) or values.get("num_labels", 2)
    tasks = (values.get("finetuning_task"), pickled_task(folder), folder.resolve().name)
    for task in tasks:
        labels = GLUE_LABELS.get(str(task).lower(), ())
        if len(labels) == count:
            return labels
    return []


def check_label_order(path: Path, values: Mapping[str, Any]) -> None:
    """Raise UserError where a model's labels are those of its training, but in another order.

    Its weights have them in the training's order, so answers would get each other's names. Labels
    with other names may have been renamed on purpose.

    Args:
        path: the config.json.
        values: its content.
    """
    labels = stored_labels(values)
    names = [name for name in TRAINING_FILES if path.with_name(name).is_file()]
    if not names:
        return  # a model from elsewhere, whose results may be in a task's own order
    for name in (*names, RESULTS_FILE):
        trained = labels_of_training(path.with_name(name), values)
        if trained and labels != trained and sorted(labels) == sorted(trained):
            raise UserError(
                f"{path}: id2label has the labels {shown(labels)}; the model was trained with "
                f"{shown(trained)}, in this order ({name}): restore id2label and label2id"
            )
        if trained:
            return


def labels_of_training(file: Path, values: Mapping[str, Any]) -> list[str]:
    """Read the labels of a training in its order; [] where nothing tells.

    Trainings write them down. Of older ones, GLUE's order, the flag with the columns of several
    labels, or the results of the last evaluation tell.

    Args:
        file: that a training or an evaluation left beside the config.json.
        values: the content of the config.json.
    """
    about: dict[str, Any] = {}
    with suppress(UserError):
        about = read_json(file) if file.is_file() else {}
    trained = about.get("labels")
    if isinstance(trained, list) and all(isinstance(label, str) for label in trained):
        return trained
    if file.name == RESULTS_FILE:
        classes = about.get("classes")
        return list(classes) if isinstance(classes, Mapping) else []
    origin = about.get("provenance")
    flags = origin.get("flags") if isinstance(origin, Mapping) else None
    if not isinstance(flags, Mapping):
        return []
    if flags.get("task_name"):
        return list(GLUE_LABELS.get(str(values.get("finetuning_task")), ()))
    columns = str(flags.get("label_column_name") or "").split(",")
    return [name.strip() for name in columns] if len(columns) > 1 else []


def pickled_task(folder: Path) -> str | None:
    """Read the task_name in a training_args.bin without running what it would run."""
    path = folder / "training_args.bin"
    if not path.is_file() or path.stat().st_size > LARGEST_JSON:
        return None
    try:
        content = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
                content = archive.read(name)
        stream = io.BytesIO(content)
        texts: list[str] = []
        while stream.tell() < len(content):  # PyTorch of before 1.6 wrote several pickles
            texts += [text for _, text, _ in pickletools.genops(stream) if isinstance(text, str)]
        return texts[texts.index("task_name") + 1]
    except (OSError, ValueError, IndexError, zipfile.BadZipFile):
        return None


def read_encoder_config(path: Path) -> dict[str, Any]:
    """Read a config.json; where it has no model_type, as older ones, the weights beside it tell.

    Without weights it is taken for an ALBERT's. Raises UserError as `check_computation` does.
    """
    values = read_json(path)
    check_computation(path, values)
    if values.get("model_type") is None and has_weights(path.parent):
        values["model_type"] = family_of(tensor_names(path.parent), values)
    return values


# Keys that an ALBERT of ours has from other families.
OTHER_KEYS = ("pad_token_id", "relative_attention_num_buckets")


def as_suite(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Turn an encoder's config.json, of file `path`, into one of this suite's; see `load_config`.

    Raises UserError for values that transformers does not take.
    """
    if not is_general(values.get("model_type")):
        return as_albert(values)
    try:
        return as_elbert(values)
    # An encoder without what ALBERT's sizes need, or a value of a wrong type, fails in many ways.
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, AttributeError) and isinstance(error.obj, PreTrainedConfig):
            reason = f"its configuration lacks a size that exits need, {error.name}"
        raise UserError(
            f"{path}: model_type = {values['model_type']!r} cannot have exits: {reason}"
        ) from error


def as_albert(values: dict[str, Any]) -> dict[str, Any]:
    """Turn a family's config.json into that of the ALBERT that the encoder is.

    Keys that the file leaves out have HF's defaults of the family. The values of any other
    configuration are returned as they are.
    """
    family = values.get("model_type")
    if family not in FAMILIES:
        return values
    names = CONFIG_NAMES.get(str(family), {})
    renamed = {names[name]: value for name, value in values.items() if name in names}
    # The family's own name of a key wins over ALBERT's, which transformers does not read there.
    values = {**{name: values[name] for name in values if name not in names}, **renamed}
    family_defaults = CONFIG_MAPPING[family]().to_dict()
    defaults = {names.get(name, name): value for name, value in family_defaults.items()}
    shared_names = [name for name in defaults if name in ALBERT_KEYS or name in OTHER_KEYS]
    values = {**{name: defaults[name] for name in shared_names}, **values}
    values |= FIXED_VALUES.get(family, {})
    if "classifier_dropout_prob" not in values:
        head_dropout = (
            values.get("classifier_dropout") if "classifier_dropout" in defaults else None
        )
        values["classifier_dropout_prob"] = (
            values["hidden_dropout_prob"] if head_dropout is None else head_dropout
        )
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
