"""A pipeline of transformers that says where a text exits."""

from typing import Any

from transformers import TextClassificationPipeline
from transformers.utils import ModelOutput


class EarlyExitPipeline(TextClassificationPipeline):
    """HF's, which also says where a text exits: `exit_layer`, or of Adaptive Depth its `updates`.

    `pipeline("text-classification", folder, pipeline_class=EarlyExitPipeline)` makes one. Other
    models' answers stay as they are.
    """

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        out = super()._forward(model_inputs)
        # Of each example: HF takes a batch apart along the first dimension of all that there is.
        return {name: out[name] for name in ("logits", "exit_layer", "updates") if name in out}

    def postprocess(self, model_outputs: ModelOutput, **how: Any) -> Any:
        found = super().postprocess(model_outputs, **how)
        depth = depth_of(model_outputs)
        for answer in [found] if isinstance(found, dict) else found:
            answer.update(depth)
        return found


def depth_of(out: dict[str, Any]) -> dict[str, float]:
    """Say of one example's output where it exits, or how often its tokens are updated (mean)."""
    if "exit_layer" in out:
        return {"exit_layer": int(out["exit_layer"])}
    if "updates" in out:
        return {"updates": float(out["updates"][out["updates"] > 0].mean())}
    return {}
