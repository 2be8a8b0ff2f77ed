"""Check that a file answers as its model, where the layers are transformers' own.

torch's exporter records what these layers do with one batch. What their code decides by a batch's
size would be recorded for that size alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch

from ..errors import UserError
from ..hf_layers.check import two_texts

TOLERANCE = 1e-3  # of the largest logit, or of 1: float32 sums in another order differ by far less


@torch.no_grad()
def check_answers(exported: ir.Model, model: Any, settings: Mapping[str, np.ndarray]) -> None:
    """Compare a file with its model on batches of other sizes than the exporter had.

    Args:
        exported: of `to_onnx`.
        model: that it was made from, an early-exit model with transformers' own layers.
        settings: exit keys, of shape () each, under which few examples exit early.

    Raises UserError where the two differ, or ONNX Runtime refuses the file.
    """
    config = model.config
    own_settings = {name: getattr(config, name) for name in settings}
    ids, mask = two_texts(model.albert.model)
    shorter = int(mask[1].sum())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = ir.to_proto(exported).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"ONNX Runtime refuses the file ({reason}): {advice(config)}") from error
    config.update({name: value.item() for name, value in settings.items()})
    try:
        for texts in ((ids, mask), (ids[1:, :shorter], mask[1:, :shorter])):
            compare(session, model, texts, settings)
    finally:
        config.update(own_settings)


def compare(
    session: onnxruntime.InferenceSession,
    model: Any,
    texts: tuple[torch.Tensor, torch.Tensor],
    settings: Mapping[str, np.ndarray],
) -> None:
    """Raise UserError where a file and its model give a batch other exits or answers.

    texts: ids and mask, (batch, length) each.
    """
    ids, mask = texts
    expected = model(ids, mask)
    feed = {
        "input_ids": ids.numpy(),
        "attention_mask": mask.numpy(),
        "token_type_ids": np.zeros_like(ids.numpy()),
    }
    logits, exit_layer = session.run(["logits", "exit_layer"], {**feed, **settings})
    difference = np.abs(logits - expected.logits.numpy()).max()
    largest = max(1.0, float(expected.logits.abs().max()))
    if exit_layer.tolist() != expected.exit_layer.tolist() or difference > TOLERANCE * largest:
        raise UserError(
            "the ONNX file does not answer as the model does, by up to "
            f"{difference:.2g}, on {len(ids)} texts of {ids.shape[1]} tokens: "
            f"{advice(model.config)}"
        )


def advice(config: Any) -> str:
    """Say why a file is not written, and what to do instead."""
    return (
        f"torch's exporter does not take the layers of {config.encoder_config.get('model_type')!r} "
        "as they are. Serve the model in PyTorch"
    )
