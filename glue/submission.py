"""Files of predictions, as gluebenchmark.com takes them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from glue.splits import Example
from glue.table_writing import format_cells
from glue.tasks import Task
from modeling.errors import UserError


def label_text(task: Task, prediction: Any) -> str:
    """Spell a prediction as it stands in a file.

    Args:
        prediction: a class id, which is spelled as its label; for several labels a 0 or 1 each, of
            which those with 1 are listed; or a score, with 3 decimals (STS-B, clipped to 0…5) or
            all digits of its number type: a label is a float, a model's answer an np.float32.

    Raises:
        UserError: a score that is not finite.
    """
    if task.multi_label:
        # Only CSV and JSON can carry a tab or line break in a label; a submission is a TSV.
        present = [
            " ".join(name.split())
            for name, is_present in zip(task.labels, prediction, strict=True)
            if is_present
        ]
        return (task.separator or ",").join(present)
    if not math.isfinite(prediction):
        raise UserError(f"{task.name}: the predicted score is {prediction}")
    if not task.is_regression:
        return " ".join(task.labels[int(prediction)].split())
    if task.score_range is None:
        return str(prediction)  # the shortest text that spells the number, of a float32 or a label
    low, high = task.score_range
    clipped = min(max(prediction, low), high)
    return f"{clipped + 0.0:.3f}"  # + 0.0 turns -0.0 into 0.0


def submission_text(task: Task, examples: Sequence[Example], predictions: Iterable[Any]) -> str:
    """Format the task's official file, of index and prediction."""
    rows = [["index", "prediction"]]
    for example, prediction in zip(examples, predictions, strict=True):
        rows.append([" ".join(example.index.split()), label_text(task, prediction)])
    return format_cells(".tsv", rows).decode()
