"""The model that a fine-tuning starts from: its configuration, tokenizer, weights and exit keys."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from evaluation.modes.base import Mode
from glue.tasks import Task
from modeling.configuration import AdaptiveConfig
from modeling.encoder import AlbertPreTrainedModel
from modeling.errors import UserError
from modeling.exit_settings import (
    EXIT_FILE,
    NO_KEYS,
    RECORDS,
    KeyValues,
    file_named_at_training,
    overriding_file,
    read_exit_file,
    resolve,
)
from modeling.files import TOKENIZER_FILES, file_hash, find_file, read_json
from modeling.keys import FITTED_KEYS
from modeling.labels import stored_labels
from modeling.loading.configs import load_config
from modeling.loading.tokenizers import check_vocab_size, load_tokenizer
from modeling.loading.weights import check_layers, load_model
from runs.folder import RunFolder
from runs.job import names_for_task
from runs.settings import ModelSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartingModel:
    """Where a fine-tuning's model comes from, and what flags change of it."""

    mode: Mode
    keys: KeyValues  # of the configuration, that flags set
    weights: str  # folder
    config: Path  # config.json, or its folder
    tokenizer: str  # folder
    from_scratch: bool  # are all weights new?
    labels_in_order: bool  # do labels without a common name match by their order?

    @classmethod
    def of(
        cls, settings: ModelSettings, mode: Mode, keys: KeyValues, labels_in_order: bool = False
    ) -> "StartingModel":
        """Read the flags: configuration and tokenizer are beside the weights unless these say."""
        weights = settings.model_name_or_path
        return cls(
            mode=mode,
            keys=keys,
            weights=weights,
            config=Path(settings.config_name or weights),
            tokenizer=settings.tokenizer_name or weights,
            from_scratch=settings.from_scratch,
            labels_in_order=labels_in_order,
        )

    def make_config(self, task: Task) -> AdaptiveConfig:
        """Make the configuration of a model for `task`, with the keys that flags set."""
        id2label = dict(enumerate(task.labels)) or {0: "score"}
        keys = dict(self.keys.values)
        named_file = self.named_exit_file
        if named_file:
            keys["exit_config_path"] = str(named_file)
        config = load_config(
            self.config,
            self.mode.config_class,
            # A named file overrides keys at evaluation, as it then is: config.json has none of it.
            NO_KEYS if named_file else None,
            id2label=id2label,
            label2id={label: number for number, label in id2label.items()},
            num_labels=task.num_labels,
            # The starting model's is of its own task.
            problem_type="multi_label_classification" if task.multi_label else None,
            finetuning_task=task.name,
            **keys,
        )
        for key in FITTED_KEYS:
            # They were fitted to the answers of the model that the training starts from.
            if getattr(config, key, None) and key not in self.keys.values:
                logger.info("%s of %s is left out: it was fitted to that model", key, self.config)
                setattr(config, key, [])
        if self.copied_exit_file:
            config.exit_config_path = EXIT_FILE  # where `copy_exit_file` puts it
        for key, feature in self.mode.table.ignored.items():
            if feature and getattr(config, key, False) is True:
                logger.warning("%s: %s = true has no effect: no %s here", self.config, key, feature)
        return config

    def load_tokenizer(
        self, config: AdaptiveConfig, max_seq_length: int, do_lower_case: bool
    ) -> PreTrainedTokenizerBase:
        """Load the tokenizer, with `max_seq_length` as its limit, which is saved with it.

        Raises UserError when the tokenizer, or the length, is too large for a model of `config`.
        """
        tokenizer = load_tokenizer(self.tokenizer, do_lower_case or None)
        check_vocab_size(tokenizer, self.tokenizer, config)
        config.check_length(max_seq_length)
        tokenizer.model_max_length = max_seq_length
        return tokenizer

    def make_model(
        self, config: AdaptiveConfig, task: Task
    ) -> tuple[AlbertPreTrainedModel, list[str]]:
        """Make a model with the weights; those of another task come without their heads.

        Returns:
            The model, and the names of its newly initialised parameters.

        Raises UserError for a head of as many classes as the task, but of others; see
        `match_labels`.
        """
        if self.from_scratch:
            logger.info("Weights newly initialised: all (--from_scratch)")
            new_model = self.mode.model_class(config)
            check_layers(new_model, self.config)
            return new_model, list(new_model.state_dict())
        path = find_file(self.weights, "config.json")
        stored = read_json(path) if path else {}
        trained_on = stored.get("finetuning_task")
        if getattr(config, "keep_head", False):
            trained_on = config.finetuning_task  # the user says that the head is of this task
            check_kept_head(stored, task, self.weights)
        head_labels = names_for_task(stored_labels(stored), task, stored)
        model, report = load_model(
            self.mode.model_class,
            self.weights,
            config,
            other_task=trained_on is not None and trained_on != config.finetuning_task,
            head_labels=head_labels,
            labels_in_order=self.labels_in_order,
        )
        for line in report.lines():
            logger.info(line)
        return model, report.initialised

    def spiece_file(self) -> Path:
        """Find the tokenizer's spiece.model for --save_format pytorch; UserError without one."""
        path = find_file(self.tokenizer, "spiece.model")
        if path is None:
            raise UserError(
                f"--save_format pytorch: no spiece.model in {self.tokenizer}, and ELBERT's "
                "published code reads no other tokenizer; name a folder that has one with "
                "--tokenizer_name"
            )
        return path

    def config_file(self) -> Path:
        """Return the path of the starting config.json."""
        return self.config if self.config.is_file() else self.config / "config.json"

    def exit_config(self) -> dict[str, Any]:
        """Read the starting config.json, with flags' keys; {} in a mode without exit files."""
        if "exit_config_path" not in self.mode.table.keys:
            return {}
        path = self.config_file()
        return {**(read_json(path) if path.exists() else {}), **self.keys.values}

    @cached_property
    def named_exit_file(self) -> Path | None:
        """Find the file of exit keys that a flag or the configuration names; None without any.

        It is read where it lies, by every later command.
        """
        config = self.exit_config()
        is_flag = "exit_config_path" in self.keys.values
        return file_named_at_training(config, self.config_file().parent, trusted=is_flag)

    @cached_property
    def copied_exit_file(self) -> Path | None:
        """Find the exit_config.json beside the configuration, where no other is named."""
        config = self.exit_config()
        if not config or self.named_exit_file:
            return None
        return overriding_file({**config, "exit_config_path": ""}, self.config_file().parent)

    def exit_keys(self, config: AdaptiveConfig) -> dict[str, Any]:
        """Return the exit keys that an evaluation in the training's command would have.

        Raises UserError for a key of the named file that is not allowed.
        """
        if not self.named_exit_file:
            return config.exit_keys()
        named = {"exit_config_path": str(self.named_exit_file)}
        flags = self.keys.overridden_by(KeyValues.from_source(named, "the configuration"))
        keys = resolve(self.config_file(), self.mode.table, flags, vars(config))
        logger.info("Exit keys at evaluation: %s", keys.line())
        return dict(keys.values)

    def copy_exit_file(self, directory: Path) -> None:
        """Copy the exit keys that flags do not set into `directory`, beside the trained model.

        Does nothing where they are there already: a training that is resumed has copied them, and
        they may have been edited since.
        """
        source = self.copied_exit_file
        if source is None or (directory / EXIT_FILE).exists():
            return
        # A fit, a guarantee and a reference are of the model that the training starts from.
        left_out = {*self.keys.values, *FITTED_KEYS, *RECORDS}
        keys = {key: value for key, value in read_exit_file(source).items() if key not in left_out}
        RunFolder(directory).write_json(EXIT_FILE, keys)
        logger.info("%s is copied to %s: edit the copy", source, directory / EXIT_FILE)

    def record(self) -> dict[str, Any]:
        """Say which files a later edit concerns, for training.json.

        `exit_config_path` is the file that evaluations read where it lies; `copied` has the SHA-256
        of each file whose later edits have no effect on the trained model, by its path.
        """
        tokenizer = Path(self.tokenizer)
        sources = [self.config_file(), *(tokenizer / name for name in TOKENIZER_FILES)]
        exit_file = self.copied_exit_file
        if exit_file:
            sources.append(exit_file)
        copied = {str(path.absolute()): file_hash(path) for path in sources if path.is_file()}
        named_file = self.exit_config().get("exit_config_path")
        if not named_file:
            return {"copied": copied}
        path = self.named_exit_file or self.config_file().parent.absolute() / named_file
        return {"copied": copied, "exit_config_path": str(path)}


def check_kept_head(stored: Mapping[str, Any], task: Task, source: str) -> None:
    """Raise UserError for a classifier whose head answers another kind of task than the table's.

    Args:
        stored: the classifier's config.json.
        task: the table's.
        source: the classifier's folder or hub name, for the error.
    """
    kind, how = "single_label_classification", "a class for each row"
    if task.multi_label:
        kind, how = "multi_label_classification", "several labels for a row"
    elif task.is_regression:
        kind, how = "regression", "a value for each row"
    head_kind = stored.get("problem_type") or kind
    outputs = len(stored.get("id2label") or {}) or stored.get("num_labels")
    if task.labels and outputs == 1:
        head_kind = "one output"
    if head_kind != kind:
        raise UserError(
            f"{source}: its head is for {head_kind}, and the table has {how} ({kind}), so that a "
            "kept head would answer otherwise than before. Give a table of the head's kind "
            "(--task_type, --label_column_name), or train without --recipe add_exits"
        )
