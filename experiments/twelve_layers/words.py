"""A bag of words on SST-2: what a logistic regression on words and pairs of words answers."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from experiments.twelve_layers.rows import lines_of


def record_words(data: Path, path: Path) -> None:
    """Record its answers to the rows of dev.tsv, unless they are recorded.

    data: folder of the task's tables. path: file of the answers; all_logits, (1, examples, 2), are
    half the log odds of either class.
    """
    if path.exists():
        return
    texts, labels = read_sst2(data / "train.tsv")
    regression = LogisticRegression(C=10, max_iter=1000)
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), regression)
    model.fit(texts, labels)
    dev_texts, dev_labels = read_sst2(data / "dev.tsv")
    half = model.decision_function(dev_texts).astype(np.float32) / 2
    path.parent.mkdir(exist_ok=True)
    save_file({"all_logits": np.stack([-half, half], -1)[None], "labels": dev_labels}, path)


def read_sst2(table: Path) -> tuple[list[str], np.ndarray]:
    """Read texts and labels of a table in the layout of SST-2."""
    rows = [line.rsplit("\t", 1) for line in lines_of(table)[1:]]
    return [text for text, _ in rows], np.array([int(label) for _, label in rows])
