"""The model that a fine-tuning starts from: its configuration, tokenizer, weights and exit keys."""

import logging
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from elbert.albert import AlbertPreTrainedModel
from elbert.configuration import AdaptiveConfig
from elbert.loading.configs import load_config
from elbert.loading.tokenizers import check_vocab_size, load_tokenizer
from elbert.loading.weights import load_model
from elbert_base.errors import UserError
from elbert_base.exit_settings import EXIT_FILE, KeyValues, overriding_file, read_exit_file
from elbert_base.files import find_file, read_json
from elbert_base.keys import FITTED_KEYS
from elbert_base.labels import stored_labels
from glue.tasks import Task
from modes.base import Mode
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
        config = load_config(
            self.config,
            self.mode.config_class,
            id2label=id2label,
            label2id={label: number for number, label in id2label.items()},
            num_labels=task.num_labels,
            # The starting model's is of its own task.
            problem_type="multi_label_classification" if task.multi_label else None,
            finetuning_task=task.name,
            **self.keys.values,
        )
        for key in FITTED_KEYS:
            # They were fitted to the answers of the model that the training starts from.
            if getattr(config, key, None) and key not in self.keys.values:
                logger.info("%s of %s is left out: it was fitted to that model", key, self.config)
                setattr(config, key, [])
        if self.exit_file():
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

    def make_model(self, config: AdaptiveConfig, task: Task) -> AlbertPreTrainedModel:
        """Make a model with the weights; those of another task come without their heads.

        Raises UserError for a head of as many classes as the task, but of others; see
        `match_labels`.
        """
        if self.from_scratch:
            logger.info("Weights newly initialised: all (--from_scratch)")
            return self.mode.model_class(config)
        path = find_file(self.weights, "config.json")
        stored = read_json(path) if path else {}
        trained_on = stored.get("finetuning_task")
        if getattr(config, "keep_head", False):
            trained_on = config.finetuning_task  # the user says that the head is of this task
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
        return model

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

    def exit_file(self) -> Path | None:
        """Find the file of exit keys that --set or the configuration names; None without any."""
        if "exit_config_path" not in self.mode.table.keys:
            return None
        path = self.config if self.config.is_file() else self.config / "config.json"
        config = read_json(path) if path.exists() else {}
        return overriding_file(
            {**config, **self.keys.values},
            path.parent,
            trusted="exit_config_path" in self.keys.values,
        )

    def copy_exit_file(self, directory: Path) -> None:
        """Copy the exit keys that flags do not set into `directory`, beside the trained model.

        Does nothing where they are there already: a training that is resumed has copied them, and
        they may have been edited since.
        """
        source = self.exit_file()
        if source is None or (directory / EXIT_FILE).exists():
            return
        keys = read_exit_file(source)
        for key in self.keys.values:
            keys.pop(key, None)
        RunFolder(directory).write_json(EXIT_FILE, keys)
