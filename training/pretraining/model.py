"""The models that are pre-trained, their tokenizers, and where both come from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from modeling import AlbertActForPreTraining, UserError, load_tokenizer
from modeling.families import FAMILIES
from modeling.files import read_json
from modeling.keys import ACT_KEYS, ELBERT_KEYS
from modeling.loading.configs import make_config
from modeling.loading.tokenizers import check_vocab_size
from modeling.loading.weights import ACT_NAMES, LoadReport, load_into, read_weights
from runs.output_dir import check_finished
from training.pretraining.settings import PretrainingModelSettings, PretrainingSettings
from training.pretraining.tokenizer import train_tokenizer


class Architecture(NamedTuple):
    """What --model_type names."""

    model_class: Any
    foreign_keys: set[str]  # keys of a config.json that belong to another mode
    tensor_names: Mapping[str, str]  # patterns of a checkpoint's names, and what takes their place


ARCHITECTURES = {
    "albert": Architecture(AlbertForPreTraining, {*ELBERT_KEYS, *ACT_KEYS}, {}),
    "albert_act": Architecture(AlbertActForPreTraining, {*ELBERT_KEYS}, ACT_NAMES),
}
# Prefixes of the names of weights that those of --model_name_or_path may lack.
NEW_PARTS = (
    "albert.pooler.",
    "albert.encoder.albert_layer.act.",
    "predictions.",
    "sop_classifier.",
)


def read_config(model: PretrainingModelSettings, source: str | None) -> AlbertConfig:
    """Read a config.json, or its folder's, without what belongs to another --model_type.

    Raises UserError for a family's whose layers have weights of their own, for --tau of a dense
    model, and where there is no `source`.
    """
    if not source:
        raise UserError("--config_name is missing, e.g. configs/act_tiny.json")
    path = Path(source, "config.json") if Path(source).is_dir() else Path(source)
    stored = read_json(path)
    if stored.get("model_type") in FAMILIES:
        advice = "share_layers.py makes an ALBERT of a BERT"
        if "relative_attention_num_buckets" in stored:
            advice = "no script here pre-trains a model with a relative attention bias"
        raise UserError(
            f"{source} is of model_type {stored['model_type']}, with a layer of its own at every "
            f"depth: {advice}"
        )
    architecture = ARCHITECTURES[model.model_type]
    foreign_keys = architecture.foreign_keys
    values = {name: value for name, value in stored.items() if name not in foreign_keys}
    if model.tau is not None:
        if "tau" in foreign_keys:
            raise UserError(
                "--tau belongs to --model_type albert_act; an ordinary ALBERT has no ponder cost"
            )
        values["tau"] = model.tau
    return make_config(path, values, architecture.model_class.config_class)


def make_tokenizer(settings: PretrainingSettings) -> None:
    """Write --train_tokenizer's spiece.model to --output_dir, with no other tokenizer beside it.

    Does nothing where the run that is resumed has written it already.
    """
    model = settings.model
    text = settings.text
    run = settings.run
    output = Path(run.output_dir)
    if run.resume_from_checkpoint and (output / "spiece.model").exists():
        return
    config_source = model.config_name or model.model_name_or_path
    vocab_size = model.vocab_size or read_config(model, config_source).vocab_size
    train_tokenizer(
        text.train_files,
        split=text.split_sentences,
        vocab_size=vocab_size,
        lower_case=run.do_lower_case,
        directory=output,
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):  # would be taken in its place
        (output / name).unlink(missing_ok=True)


def new_model(
    settings: PretrainingSettings, config_source: str | None, tokenizer_source: str
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Make a model with new weights, and load the tokenizer.

    Raises UserError where pieces or positions have no embeddings.
    """
    text, training = settings.text, settings.training
    config = read_config(settings.model, config_source)
    tokenizer = load_tokenizer(tokenizer_source, settings.run.do_lower_case or None)
    check_vocab_size(tokenizer, tokenizer_source, config)
    lengths = {"--max_seq_length": text.max_seq_length}
    if settings.run.do_train and training.long_fraction > 0:
        lengths["--long_seq_length"] = training.long_seq_length
    longest = config.max_position_embeddings
    for flag, length in lengths.items():
        if length > longest:
            raise UserError(f"{flag} {length}: the model has max_position_embeddings = {longest}")
    return ARCHITECTURES[settings.model.model_type].model_class(config), tokenizer


def load_weights(model: PreTrainedModel, source: str) -> LoadReport:
    """Copy an ALBERT's or an ACT model's weights into `model`; its heads may be new."""
    config: Any = model.config
    names = ARCHITECTURES[config.model_type].tensor_names
    return load_into(model, read_weights(source, names), source, NEW_PARTS)


def load_trained(settings: PretrainingSettings, source: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load the pre-trained model in the folder `source`, and its tokenizer.

    Raises UserError for a folder without a finished training, and for weights that lack a part.
    """
    check_finished(source)
    tokenizer_source = settings.model.tokenizer_name or source
    if source == settings.run.output_dir:  # --tokenizer_name may be that of its training
        tokenizer_source = source
    model, tokenizer = new_model(settings, source, tokenizer_source)
    report = load_weights(model, source)
    parameters = {name for name, _ in model.named_parameters()}  # without those tied to others
    missing = parameters.intersection(report.initialised)
    if missing:
        raise UserError(f"{source}: no weights for {min(missing)}; --do_train trains them")
    return model, tokenizer
