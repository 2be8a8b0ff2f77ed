"""Files of predictions, as gluebenchmark.com takes them."""

import math
from collections.abc import Sequence
from pathlib import Path

from glue.tasks import Example, Task
from modeling.errors import UserError
from utils.files import write_text


def label_text(task: Task, prediction: float) -> str:
    """Spell a class id as its label, a score with 3 decimals (STS-B, in 0…5) or 6 digits."""
    if not math.isfinite(prediction):
        raise UserError(f"{task.name}: the predicted score is {prediction}")
    if not task.is_regression:
        # Only CSV and JSON can carry a tab or line break here.
        return " ".join(task.labels[int(prediction)].split())
    if task.score_range is None:
        return f"{prediction:.6g}"
    low, high = task.score_range
    return f"{min(max(prediction, low), high) + 0.0:.3f}"  # + 0.0 turns -0.0 into 0.0


def write_submission(
    task: Task, examples: Sequence[Example], predictions: Sequence[float], directory: str | Path
) -> Path:
    """Write the task's official file, of index and prediction, and return its path."""
    lines = ["index\tprediction"]
    for example, prediction in zip(examples, predictions, strict=True):
        index = " ".join(example.index.split())
        lines.append(f"{index}\t{label_text(task, prediction)}")
    path = Path(directory) / task.submission
    write_text(path, "\n".join(lines) + "\n")
    return path
