"""The recorded answers of experiments/recorded, with the FLOPs of every exit."""

from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from experiments.comparison.analysis import Answers
from modeling.configuration import AdaptiveConfig, ElbertConfig, PonderAlbertConfig
from modeling.flops import early_exit_flops, full_depth_flops

RECORDED = Path(__file__).parents[1] / "recorded"
TASKS = ("SST-2", "SICK", "STS-B")
CALIBRATION = 1000  # rows before SST-2's dev set in the newer recordings
MINILM = {"hidden_size": 384, "embedding_size": 384, "num_attention_heads": 12}
PONDER = {"intermediate_size": 3072}
PALBERT = {**PONDER, "lambda_layer_arch": "linear_cat", "num_lambda_layers": 3}


def config_of(kind: str, depth: int = 6) -> AdaptiveConfig:
    keys = {**MINILM, "num_hidden_layers": depth}
    if kind == "shared":
        return ElbertConfig(**keys, intermediate_size=3072)
    if kind == "untied":
        return ElbertConfig(**keys, intermediate_size=1536, num_hidden_groups=depth)
    return PonderAlbertConfig(**keys, **(PONDER if kind == "pondernet" else PALBERT))


@cache
def rows(task: str, part: str = "dev") -> dict[str, np.ndarray]:
    """labels, and lengths with [CLS] and [SEP]; of SST-2 also the part "phrases"."""
    tensors = load_file(RECORDED / f"{task}-rows.safetensors")
    first = CALIBRATION if task == "SST-2" else 0
    kept = slice(first) if part == "phrases" else slice(first, None)
    return {name: tensor[kept] for name, tensor in tensors.items()}


@cache
def costs(task: str, kind: str, depth: int = 0, part: str = "dev") -> np.ndarray:
    """FLOPs as shares of the shared encoder's mean full depth without exits on the dev set.

    Of an exit at each layer, (layers, examples); with `depth`, of a model of so many layers that
    answers once, at its end, (examples,). A model that learns to halt reads one token more.
    """
    config = config_of(kind, depth or 6)
    lengths = rows(task, part)["lengths"].astype(int) + isinstance(config, PonderAlbertConfig)
    full = np.mean([full_depth_flops(config_of("shared"), int(n)) for n in rows(task)["lengths"]])
    known = range(lengths.max() + 1)
    if depth:
        return np.array([full_depth_flops(config, n) for n in known])[lengths] / full
    layers = range(1, config.num_hidden_layers + 1)
    table = np.array([[early_exit_flops(config, n, k) for n in known] for k in layers])
    return table[:, lengths] / full


def load(name: str, kind: str, part: str = "dev") -> Answers:
    """One recording: `name` is TASK-NETWORK-SEED, `kind` as for `config_of`."""
    task = next(task for task in TASKS if name.startswith(task))
    tensors = load_file(RECORDED / f"{name}{'-test' if task == 'SICK' else ''}.safetensors")
    labels = rows(task, part)["labels"].astype(float)
    kept = slice(len(labels)) if part == "phrases" else slice(-len(labels), None)
    logits, halts = tensors["all_logits"][:, kept], tensors.get("halt_probabilities")
    halts = None if halts is None else halts[kept].T
    return Answers(logits, labels, costs(task, kind, part=part)[: len(logits)], halts)


def seeds(task: str, network: str) -> list[int]:
    """Recorded seeds but those that chose: SST-2's 42 ELBERT's recipe, 7 the rates."""
    suffix = "-test" if task == "SICK" else ""
    found = RECORDED.glob(f"{task}-{network}-*{suffix}.safetensors")
    numbers = [path.stem.removesuffix(suffix).rpartition("-")[2] for path in found]
    left_out = {"7", "42"} if (task, network) == ("SST-2", "elbert") else {"7"}
    return sorted(int(number) for number in set(numbers) - left_out if number.isdigit())
