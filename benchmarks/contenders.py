"""HF's models and ours with forced exits, which speed.py compares; their texts and their runs."""

import functools
import itertools
import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)

from modeling import ElbertConfig, ElbertForSequenceClassification, load_model, load_pretrained
from modeling.captures import rounded_length
from modeling.cpu_packing import cast_layers, is_emulated, packed_copy
from modeling.depth import ExampleState, ExitDecision, Inputs, layer_states
from modeling.depth_batching import DepthBatcher
from modeling.graphs import inference_copy
from modeling.hf_layers.configs import as_elbert
from modeling.rules import AnyRule
from modeling.runtime import keep_freed_memory

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HAS_BF16 = not is_emulated(torch.bfloat16, DEVICE)
HALF_TYPES = {"bf16": torch.bfloat16} if HAS_BF16 else {}  # in which models are timed, by name
if DEVICE.type == "cuda":
    HALF_TYPES["fp16"] = torch.float16
MOST_COMPILED_SHAPES = 64  # of HF's model, in a process
MOST_SPREAD = 0.25  # of a contender's rounds; see `spread`
BASE = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "hidden_act": "gelu_new",
}
# Sizes of models with random weights; those of BERTs have layers of their own.
ALBERTS = {
    "ALBERT-base": BASE,
    "ALBERT-large": {
        **BASE,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
    },
    "ALBERT-xlarge": {
        **BASE,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
    },
}
BERTS = {
    "MiniLM": {
        "hidden_size": 384,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "hidden_act": "gelu",
    },
    "BERT-large": {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "hidden_act": "gelu",
    },
}
PROCESSOR_FLAGS = (
    "avx2",
    "avx512_f",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)
# Tokens of the dev sets' texts (WordPiece, at most 128) at 64 evenly spaced quantiles.
LENGTHS = {
    "SST-2": (
        "7 8 9 10 11 12 12 12 13 14 14 15 15 16 17 17 18 18 18 19 19 20 20 20 21 21 22 22 23 23 "
        "24 24 25 25 25 26 26 27 27 28 28 29 29 30 30 31 31 32 32 33 34 35 35 36 37 38 39 40 41 "
        "41 43 44 48 52"
    ),
    "RTE": (
        "21 24 28 29 31 33 34 35 35 36 36 38 38 39 40 41 41 42 43 43 44 46 46 47 48 48 49 49 50 "
        "51 52 53 54 54 55 56 56 58 60 60 62 64 67 68 71 73 74 78 80 81 95 100 108 112 116 122 "
        "128 128 128 128 128 128 128 128"
    ),
}
# The rule is computed, and fires nowhere before the last layer.
NEVER = {"exit_thres": 0.0, "cnt_thres": BASE["num_hidden_layers"]}
# Exit layers whose mean over 12 layers is the cost, spread as a trained model's are.
FORCED = {
    1.0: [12],
    0.75: [9, 12, 6, 10, 8, 9],
    0.5: [8, 4, 10, 2, 6, 6],
    0.25: [4, 2, 5, 1, 3, 3],
}
# The rule is computed, and fires nowhere before the last layer.
NEVER_EARLY = {"thres_name": "entropy", "exit_thres": 0.0}


class ForcedExitsConfig(ElbertConfig):
    """ELBERT's, for examples that bring the layer at which they exit."""

    own_inputs = ("target",)


class ForcedExits(ElbertForSequenceClassification):
    """An ELBERT whose examples exit at the layers that they bring as `target`."""

    config_class = ForcedExitsConfig

    def start(self, rule: AnyRule, batch: int, inputs: Inputs) -> ExampleState:
        last = torch.full((batch,), self.config.num_hidden_layers, device=self.device)
        return super().start(rule, batch, inputs)._replace(model=inputs.get("target", last))

    def check_exit(
        self, rule: AnyRule, hidden: Any, mask: Any, weights: Any, state: ExampleState
    ) -> ExitDecision:
        decision = super().check_exit(rule, hidden, mask, weights, state)
        exits = decision.exit_mask | (decision.state.depth >= state.model)
        return decision._replace(exit_mask=exits, state=decision.state._replace(model=state.model))


def spread(seconds: Sequence[float]) -> float:
    """Return how far the quartiles of some rounds lie apart, as a share of their median."""
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle


def processor_flags() -> str:
    """List the processor's instructions that decide how fast models are, in one line."""
    capabilities = torch.cpu.get_capabilities()
    return " ".join(flag for flag in PROCESSOR_FLAGS if capabilities.get(flag))


def hf_model(
    dtype: torch.dtype = torch.float32, name: str = "ALBERT-base", attention: str = "sdpa"
) -> nn.Module:
    if name in ALBERTS:
        config = AlbertConfig(**ALBERTS[name], attn_implementation=attention)
        model: nn.Module = AlbertForSequenceClassification(config)
    else:
        config = BertConfig(**BERTS[name], attn_implementation=attention)
        model = BertForSequenceClassification(config)
    return model.eval().to(DEVICE, dtype)


def compiled_hf_model(dtype: torch.dtype, name: str) -> Any:
    # By default, all shapes after the eighth would run without the compiler, and without a word.
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = MOST_COMPILED_SHAPES
    return torch.compile(hf_model(dtype, name), mode="reduce-overhead", dynamic=False)


def our_model(
    dtype: torch.dtype = torch.float32, name: str = "ALBERT-base", compile: bool = False
) -> ForcedExits:
    """Make our model for inference, as evaluation does for a whole data set."""
    keep_freed_memory()
    sizes = ALBERTS.get(name) or BERTS[name]
    layers = sizes["num_hidden_layers"]
    own: dict[str, Any] = {}
    if name in BERTS:
        own = {"num_hidden_groups": layers, "embedding_size": sizes["hidden_size"]}
    config = ForcedExitsConfig(**{**sizes, **own, **NEVER, "cnt_thres": layers})
    model = ForcedExits(config).eval().to(DEVICE)
    cast_layers(model, dtype)
    return inference_copy(model, compile)


def hf_encoder(folder: Path) -> nn.Module:
    """Load a BERT in a folder by transformers, with a new classifier."""
    return AutoModelForSequenceClassification.from_pretrained(folder).eval().to(DEVICE)


def our_encoder(folder: Path) -> nn.Module:
    """Load it with exits that never fire, by this library's own layers, with packed weights."""
    keep_freed_memory()
    model, _ = load_pretrained(folder, **NEVER_EARLY)
    return packed_copy(model.eval().to(DEVICE))


def general_encoder(folder: Path) -> nn.Module:
    """Load it with exits that never fire, by transformers' own layers, one at a time."""
    keep_freed_memory()
    values = as_elbert(json.loads((folder / "config.json").read_text("utf-8")))
    config = ElbertConfig(**values, **NEVER_EARLY)
    model, _ = load_model(ElbertForSequenceClassification, folder, config)
    return model.eval().to(DEVICE)


def ids_of(lengths: Sequence[int]) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(5, 30000) for _ in range(length)] for length in lengths]


def texts_of(task: str, count: int) -> list[list[int]]:
    """Make `count` texts, a multiple of 8, whose lengths spread as the task's, in random order."""
    lengths = [int(length) for length in LENGTHS[task].split()]
    lengths = lengths * (count // 64) if count >= 64 else lengths[64 // count // 2 :: 64 // count]
    texts = ids_of(lengths)
    random.Random(1).shuffle(texts)
    return texts


def padded(texts: list[list[int]], width: int | None = None) -> dict[str, torch.Tensor]:
    width = width or max(map(len, texts))
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts], device=DEVICE)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}  # no text holds a 0


@torch.inference_mode()
def run_hf(
    batch: int, width: int | None, model, texts: list[list[int]], is_rounded: bool = False
) -> None:
    """Run HF's model over the texts, `batch` at a time, padded to `width` or to the longest.

    is_rounded: whether to the next of the lengths that our graphs have.
    """
    for start in range(0, len(texts), batch):
        some = texts[start : start + batch]
        columns = width or max(map(len, some))
        if is_rounded:
            columns = rounded_length(columns, model.config.max_position_embeddings)
        model(**padded(some, columns)).logits.argmax(-1).tolist()


@torch.inference_mode()
def run_layers(model: ForcedExits, texts: list[list[int]]) -> None:
    """Run all layers over the texts, one by one, without an exit check."""
    for text in texts:
        hidden = model.embed(torch.tensor([text], device=DEVICE), None, None, None)
        *_, last = layer_states(model, hidden, None)
        last[0, 0, 0].item()


@functools.cache
def forced_layer(layer: int) -> torch.Tensor:
    """Make the layer at which one text exits, (1,), once: no user sends one along."""
    return torch.tensor([layer], device=DEVICE)


@torch.inference_mode()
def run_ours(batch: int, cost: float, model: ForcedExits, texts: list[list[int]]) -> None:
    """Run early exit over the texts: one by one, or in `batch` slots."""
    layers = model.config.num_hidden_layers
    targets = itertools.cycle(max(1, layer * layers // 12) for layer in FORCED[cost])
    if batch == 1:
        for text, target in zip(texts, targets, strict=False):
            ids = torch.tensor([text], device=DEVICE)
            out = model.exit_early(ids, target=forced_layer(target))
            out.logits.argmax(-1).tolist()
        return
    batcher = DepthBatcher(model, slots=batch)
    batcher.submit((text, [0] * len(text), next(targets)) for text in texts)
    for _ in batcher.answers():
        pass
