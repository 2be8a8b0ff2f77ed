"""A bag of words: what a regression on the words and pairs of words of each text answers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from glue.splits import Example, read_examples
from glue.tasks import Task


def record_words(task: Task, data: Path, path: Path) -> None:
    """Record its answers to the rows of dev.tsv, unless they are recorded.

    data: folder of the task's tables. path: file of the answers; all_logits, (1, examples,
    classes), are log odds, of two classes half of them; of a regression, values.
    """
    if path.exists():
        return
    train = read_examples(task, data, "train")
    dev = read_examples(replace(task, files={"dev": "dev.tsv"}), data, "dev")
    columns = [
        (name, TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), column)
        for column, name in enumerate(task.text_columns)
    ]
    is_regression = task.is_regression
    regression = Ridge() if is_regression else LogisticRegression(C=10, max_iter=1000)
    model = make_pipeline(ColumnTransformer(columns), regression)
    model.fit(texts_of(train), [example.label for example in train])
    if is_regression:
        logits = np.asarray(model.predict(texts_of(dev)))[:, None]
    else:
        logits = model.decision_function(texts_of(dev))
        if logits.ndim == 1:
            logits = np.stack([-logits / 2, logits / 2], -1)
    labels = np.array([example.label for example in dev])
    path.parent.mkdir(exist_ok=True)
    save_file({"all_logits": logits[None].astype(np.float32), "labels": labels}, path)


def texts_of(examples: Sequence[Example]) -> np.ndarray:
    """Return the texts of a task's examples: (examples, 1), or (examples, 2) of pairs."""
    pairs = [[example.text_a, example.text_b] for example in examples]
    texts = np.array(pairs, dtype=object)
    return texts[:, :1] if examples[0].text_b is None else texts
