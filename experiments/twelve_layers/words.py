"""A bag of words: what a regression on the words and pairs of words of each text answers.

    python -m experiments.twelve_layers.words --data out/twelve/data/SST-2

prints how long it takes for one sentence of SST-2 at a time. --data is a folder of the tables that
`experiments.twelve_layers.prepare` wrote.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline

from glue.splits import Example, read_examples
from glue.tasks import Task, get_task
from runs.processes import run_script

ROUNDS = 10  # of the times


def fit_words(task: Task, train: Sequence[Example]) -> Pipeline:
    """Fit the bag of words of a task to its training rows."""
    columns = [
        (name, TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), column)
        for column, name in enumerate(task.text_columns)
    ]
    regression = Ridge() if task.is_regression else LogisticRegression(C=10, max_iter=1000)
    model = make_pipeline(ColumnTransformer(columns), regression)
    model.fit(texts_of(train), [example.label for example in train])
    return model


def record_words(task: Task, data: Path, path: Path) -> None:
    """Record its answers to the rows of dev.tsv, unless they are recorded.

    data: folder of the task's tables. path: file of the answers; all_logits, (1, examples,
    classes), are log odds, of two classes half of them; of a regression, values.
    """
    if path.exists():
        return
    dev = read_examples(replace(task, files={"dev": "dev.tsv"}), data, "dev")
    model = fit_words(task, read_examples(task, data, "train"))
    if task.is_regression:
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


def time_each(model: Pipeline, texts: np.ndarray) -> np.ndarray:
    """Measure the milliseconds of each text alone, the median of its rounds: (texts,)."""
    rounds = np.empty((ROUNDS, len(texts)))
    for seconds in rounds:
        for number in range(len(texts)):
            start = time.perf_counter()
            model.predict(texts[number : number + 1])
            seconds[number] = time.perf_counter() - start
    return 1000 * np.median(rounds, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of SST-2's tables")
    parser.add_argument("--texts", type=int, default=50, help="of dev.tsv, spread evenly")
    args = parser.parse_args()
    task = get_task("SST-2")
    dev = read_examples(replace(task, files={"dev": "dev.tsv"}), args.data, "dev")
    model = fit_words(task, read_examples(task, args.data, "train"))
    places = np.linspace(0, len(dev) - 1, min(args.texts, len(dev))).astype(int)
    milliseconds = time_each(model, texts_of(dev)[places])
    print(
        f"bag of words: mean {milliseconds.mean():.2f} ms, p95 "
        f"{np.quantile(milliseconds, 0.95):.2f} ({len(places)} texts, {ROUNDS} rounds)"
    )


if __name__ == "__main__":
    run_script(main)
