"""The best of a training's dev evaluations, its model, and when to stop hoping for a better one."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_model
from transformers.utils import SAFE_WEIGHTS_NAME

from modeling.errors import UserError
from training.checkpoints import Learner, save_model

FOLDER = "best"  # in --output_dir, while the training goes on


@dataclass
class Best:
    """The highest dev metric so far: at which step, and how many evaluations ago.

    patience: so many evaluations without a better one are enough; None: never.
    keep: is the model of `step` wanted at the end?
    """

    patience: int | None = None
    keep: bool = False
    step: int = 0
    value: float | None = None
    since: int = 0

    @property
    def enough(self) -> bool:
        return self.patience is not None and self.since >= self.patience

    def note(self, step: int, value: float) -> bool:
        """Take note of an evaluation; is it better than all before?"""
        if self.value is not None and value <= self.value:
            self.since += 1
            return False
        self.step, self.value, self.since = step, value, 0
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"step": self.step, "value": self.value, "since": self.since}

    def resume(self, checkpoint: Path, state: Any) -> None:
        """Go on from what a checkpoint kept; UserError for what no training keeps."""
        step, value, since = (
            state.get(name) if isinstance(state, dict) else None for name in self.state()
        )
        counts = all(type(count) is int and 0 <= count < 2**31 for count in (step, since))
        if not counts or not (value is None or (type(value) is float and math.isfinite(value))):
            raise UserError(f"{checkpoint} was not written by a training: its best {state}")
        self.step, self.value, self.since = step, value, since

    def save(self, directory: Path, learner: Learner) -> None:
        """Put the model of now aside, as the best so far."""
        save_model(directory / FOLDER, learner.model, learner.tokenizer)

    def restore(self, directory: Path, learner: Learner) -> None:
        """Make the best model the learner's, and remove what was put aside."""
        if self.keep and self.step:
            load_model(learner.model, directory / FOLDER / SAFE_WEIGHTS_NAME)
        shutil.rmtree(directory / FOLDER, ignore_errors=True)
