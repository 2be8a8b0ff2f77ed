"""Recordings of random answers, and sweeps of them."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from elbert import ElbertConfig
from evaluation.sweep import Recording, Sweep, make_grids, sweep, sweepable
from glue.splits import Example
from glue.tasks import TASKS
from modeling.exits.rules import RULES

SWEPT_RULES = list(RULES)
# Short grids of some keys, where a rule reads them; every other key has its own grid.
SMALL = {
    "exit_thres": "0:1:0.25",
    "cnt_thres": "1:N",
    "margin": "0,0.1",
    "range_tmp": "0.05,0.3",
}
FINE = {"exit_thres": "0:1:0.1", "cnt_thres": "1:N", "margin": "0,0.1", "range_tmp": "0.1,0.5"}
POINTS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=25)
EXPLORED = 60  # examples
EVIL = "</script><script>document.title = 'owned'</script><b>bold</b> & {{data}} {{title}}"


def made_recording(classes: int, examples: int = 40, layers: int = 5, seed: int = 0) -> Recording:
    """Record answers that grow surer by layer; the last layer is right about most labels."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(layers, examples, classes, generator=generator)
    logits = steps.cumsum(0)
    labels = logits[-1].argmax(-1) if classes > 1 else 0.5 * logits[-1, :, 0] + steps[0, :, 0]
    if classes > 1:
        other = torch.randint(classes, labels.shape, generator=generator)
        labels = torch.where(torch.rand(examples, generator=generator) < 0.7, labels, other)
    # Every layer takes a millisecond of the first text, and a little more of each text after.
    seconds = torch.outer(1 + torch.arange(examples) / 100, torch.arange(1, layers + 1) / 1000)
    return Recording({"all_logits": logits, "seconds": seconds}, labels.numpy())


def config_of(recording: Recording, **keys) -> ElbertConfig:
    """Configure a model that could have been recorded."""
    layers, _, classes = recording.tensors["all_logits"].shape
    fits = {
        "learnt_weights": [[0.0, 0.7, 0.3]],
        "stopping_thresholds": [[0.0, 0.1, 0.2, 0.1, 0.1], [3.0, 0.5, 0.5, 0.6, 0.6]],
    }
    keys = {**fits, **keys}
    return ElbertConfig(num_hidden_layers=layers, num_labels=classes, **keys)


def sweep_of(recording: Recording, task: str, rules=None, grid=SMALL) -> Sweep:
    """Sweep each of `rules` over its grid; by default all rules that fit the task."""
    config = config_of(recording)
    rules = rules or sweepable(config)
    classes = config.exit_rules()
    keys_read = {key for name in rules for key in classes[name].reads}
    texts = {key: text for key, text in grid.items() if key in keys_read}
    return sweep(config, make_grids(config, rules, texts), recording, TASKS[task])


def swept(classes: int, task: str, rules=None, **recorded) -> tuple[Sweep, Recording]:
    """Sweep a recording made with the options `recorded`."""
    recording = made_recording(classes, **recorded)
    return sweep_of(recording, task, rules), recording


def explored(task: str) -> tuple[Sweep, list[Example], np.ndarray]:
    """Make what explorer.html shows: a sweep, its examples, confidences (layers, examples)."""
    classes = TASKS[task].num_labels
    recording = made_recording(classes, EXPLORED, seed=4)
    if classes > 1:  # whatever the answers, so that many are wrong
        recording = Recording(recording.tensors, np.arange(EXPLORED) % classes)
    examples = [
        Example(str(i), f"{EVIL} first text {i}", f"second text {i}", label)
        for i, label in enumerate(recording.labels)
    ]
    confidence = recording.tensors["all_logits"].softmax(-1).amax(-1).numpy()
    swept = sweep_of(recording, task, grid=FINE)
    share = np.arange(1, swept.num_layers + 1)[:, None] / swept.num_layers
    return replace(swept, flops=share + np.zeros(EXPLORED)), examples, confidence
