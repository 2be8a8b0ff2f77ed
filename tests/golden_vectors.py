"""Reading the reference vectors of `tests/golden` (its README says what each tensor is)."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

GOLDEN = Path(__file__).parent / "golden"


def load_golden(name: str) -> tuple[dict, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The JSON, the weights (without `model.`), and the other tensors of a reference model."""
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    description = GOLDEN / f"{name}.json"
    text = json.loads(description.read_text()) if description.exists() else {}
    weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    return text, weights, {k: v for k, v in tensors.items() if not k.startswith("model.")}
