"""The recorded answers of the compared networks, with their labels and costs.

experiments/recorded/README.md says what the files hold. A recording is named by its task, its
network and its seed; a `network` is always that part of the file's name, such as "untied-exits".
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from modeling.configuration import AdaptiveConfig, ElbertConfig, config_class_of
from runs.flags import parse
from runs.settings import GROUPS, GlueSettings

RECORDED = Path(__file__).parents[1] / "recorded"
WORDS = RECORDED / "SST-2-words.safetensors"  # answers of a bag of words
TASKS = ("SST-2", "SICK", "STS-B")

# Parts of a task's rows. The newer recordings of SST-2 begin with training rows 8,001 to 9,000,
# most of them phrases. They report nothing: learning rates and checkpoints were chosen by them, and
# the rule `learnt` is fitted to them. GLUE's dev set follows. Behind it, the newest recordings have
# the whole sentences among training rows 33,001 to 67,349, on which no network was trained.
DEV = "dev"
PHRASES = "phrases"
SENTENCES = "sentences"
PHRASE_ROWS = 1000
SST2_PARTS = {
    PHRASES: slice(0, PHRASE_ROWS),
    DEV: slice(PHRASE_ROWS, 1872),
    SENTENCES: slice(1872, 5390),
}


# Which recordings there are.


def path_of(task: str, network: str, seed: int) -> Path:
    """Return the file of a recording."""
    if network == "shared-exits" and task != "SST-2":
        network = "elbert"  # the same training, under its older name
    name = f"{task}-{network}-{seed}"
    if task == "SICK":
        name += "-test"
    return RECORDED / f"{name}.safetensors"


CONFIRMING_SEEDS = range(11, 16)  # of `confirmation.py` alone: trained later, all in bf16


def seeds(task: str, network: str) -> list[int]:
    """List the seeds of which there is a recording, without those that confirm."""
    return [
        seed
        for seed in range(100)
        if seed not in CONFIRMING_SEEDS and path_of(task, network, seed).exists()
    ]


class Name(NamedTuple):
    """The name of a recording."""

    task: str
    network: str
    seed: int


def list_recordings() -> list[Name]:
    """List the recordings that are compared and that `load` reads.

    It does not read those of ACT. "all" is the demo page's model, which is not compared.
    """
    pattern = re.compile(rf"({'|'.join(TASKS)})-(.+)-(\d+)(-test)?")
    names = []
    for path in RECORDED.glob("*.safetensors"):
        match = pattern.fullmatch(path.stem)
        if match is None:
            continue
        name = Name(match[1], match[2], int(match[3]))
        if name.network != "all" and not name.network.startswith("act-"):
            names.append(name)
    return names


# What their networks are.

MINILM = {"hidden_size": 384, "embedding_size": 384, "num_attention_heads": 12}


def starting_encoders() -> dict[str, dict[str, Any]]:
    """List the starting encoders that train.py makes, with the keys of their architecture."""
    encoders = {}
    for depth in range(1, 7):
        # One layer for all passes, with an inner size twice MiniLM's; `still` has no dropout.
        shared = {"num_hidden_layers": depth, "num_hidden_groups": 1, "intermediate_size": 3072}
        for kind in ("shared", "still"):
            encoders[f"{kind}-{depth}"] = MINILM | shared
        # MiniLM's own layers; and a shared layer of that size with a correction for every pass.
        untied = {"num_hidden_layers": depth, "num_hidden_groups": depth, "intermediate_size": 1536}
        for kind in ("untied", "rank8", "rank32"):
            encoders[f"{kind}-{depth}"] = MINILM | untied
    return encoders


STARTS = starting_encoders()


@cache
def config_of(path: Path) -> AdaptiveConfig:
    """Make the configuration of a recording's network, from what its metadata says of the training.

    train.py stores there the starting encoder, and the flags of run_glue.py.
    """
    with safe_open(path, framework="np") as file:
        run = json.loads(file.metadata()["run"])
    return trained_config(run["start"], run["flags"])


def trained_config(start: str, flags: Sequence[str]) -> AdaptiveConfig:
    """Make the configuration that a network has after a training.

    Args:
        start: the starting encoder, a name of `STARTS`.
        flags: of run_glue.py; folders are not needed.

    Raises:
        KeyError: a starting encoder that is not in `STARTS`.
        UserError: a key in the flags that the mode does not have.
    """
    required = ["--model_name_or_path", start, "--output_dir", ""]
    mode = GlueSettings(*parse(GROUPS, None, [*flags, *required])).mode
    config_class = config_class_of(mode.model_type)
    if config_class is None:
        raise ValueError(f"--model_type {mode.model_type} has no configuration")
    return config_class(**STARTS[start], **mode.keys.values)


# Labels, lengths and costs.


class Rows(NamedTuple):
    """What all recordings of a task share."""

    labels: np.ndarray  # class ids, or values, (examples,)
    lengths: np.ndarray  # in tokens, [CLS] and [SEP] included, (examples,)


@cache
def load_rows(task: str, part: str = DEV) -> Rows:
    """Load a part of a task's rows; SST-2 alone has others than `DEV`."""
    tensors = load_file(RECORDED / f"{task}-rows.safetensors")
    selected = SST2_PARTS[part] if task == "SST-2" else slice(None)
    return Rows(
        labels=tensors["labels"][selected].astype(float),
        lengths=tensors["lengths"][selected].astype(int),
    )


@cache
def unit_flops(task: str) -> float:
    """Compute the FLOPs that are a cost of 1: MiniLM's six layers without exits, dev set's mean."""
    config = ElbertConfig(**STARTS["untied-6"])
    lengths = load_rows(task).lengths.tolist()
    return float(np.mean([config.full_depth_flops(length) for length in lengths]))


def costs_of(config: AdaptiveConfig, task: str, part: str, count: int) -> np.ndarray:
    """Compute the cost of each answer to each row: (count, examples), in units of `unit_flops`.

    count: how many answers an example gets: one after each layer, with an exit check there; or a
        single one, after the last layer of a network without exits.
    """
    lengths = load_rows(task, part).lengths + config.extra_tokens
    possible_lengths = range(lengths.max() + 1)
    flops = []  # (count, possible lengths)
    if count == 1:
        flops.append([config.full_depth_flops(length) for length in possible_lengths])
    else:
        for layer in range(1, count + 1):
            flops.append([config.early_exit_flops(length, layer) for length in possible_lengths])
    return np.array(flops)[:, lengths] / unit_flops(task)


# Answers.


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of every layer of one trained network, to a part of a task's rows.

    Attributes:
        logits: (layers, examples, classes); one class for predicted values. A network without exits
            has the last layer's alone.
        labels: (examples,).
        cost: of an exit at each layer, (layers, examples).
        halts: halting probabilities λ, (layers, examples), where the network learns to halt.
        phrases: the network's answers to `PHRASES`, where these are recorded as well.
    """

    logits: np.ndarray
    labels: np.ndarray
    cost: np.ndarray
    halts: np.ndarray | None = None
    phrases: "Answers | None" = None

    @property
    def has_classes(self) -> bool:
        """Tell whether the network predicts classes, and not values."""
        return self.logits.shape[-1] > 1

    @property
    def scores(self) -> np.ndarray:
        """Score every answer, so that the mean score is the metric: (layers, examples).

        The metric is accuracy; of values, the share of the labels' variance that is explained.
        """
        if self.has_classes:
            return (self.logits.argmax(-1) == self.labels).astype(float)
        return 1 - (self.logits[..., 0] - self.labels) ** 2 / self.labels.var()


Networks = dict[tuple[str, str], list[Answers]]  # by task and network; one for each seed


def load(task: str, network: str, seed: int, part: str = DEV) -> Answers:
    """Load a recording's answers to a part of the task's rows."""
    path = path_of(task, network, seed)
    tensors = load_file(path)
    labels = load_rows(task, part).labels
    recorded_rows = tensors["all_logits"].shape[1]
    has_phrases = task == "SST-2" and recorded_rows > len(load_rows(task, DEV).labels)
    # The older recordings of SST-2 have the dev set alone.
    examples = SST2_PARTS[part] if has_phrases else slice(len(labels))
    logits = tensors["all_logits"][:, examples]
    halts = None
    if "halt_probabilities" in tensors:
        halts = tensors["halt_probabilities"][examples].T
    # Only networks with exits have a use for the phrases: the rule `learnt` is fitted to them.
    phrases = None
    has_exits = len(logits) > 1
    if part == DEV and has_phrases and has_exits:
        phrases = load(task, network, seed, PHRASES)
    return Answers(
        logits=logits,
        labels=labels,
        cost=costs_of(config_of(path), task, part, count=len(logits)),
        halts=halts,
        phrases=phrases,
    )


def load_words(part: str) -> Answers:
    """Load the answers of a bag of words to a part of SST-2's rows; their cost is 0."""
    logits = load_file(WORDS)["all_logits"][:, SST2_PARTS[part]]
    labels = load_rows("SST-2", part).labels
    return Answers(logits=logits, labels=labels, cost=np.zeros((1, len(labels))))
