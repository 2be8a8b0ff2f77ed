"""ELBERT, `--model_type albert`: a rule over the exits' answers so far stops an example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluation.modes.base import RuleSet, Setting, Tensors
from evaluation.modes.examples import ExampleMode
from modeling.keys import KEY_TABLES

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput


class Elbert(ExampleMode):
    """A rule over the exits' answers so far stops an example."""

    name, model_type, table = "albert", "elbert", KEY_TABLES["elbert"]
    optional = ("exit_weights",)  # the published code does not save it

    @property
    def model_class(self) -> type[PreTrainedModel]:
        from modeling.elbert.model import ElbertForSequenceClassification

        return ElbertForSequenceClassification

    def load(self, *arguments: Any, **keywords: Any) -> tuple:
        from modeling.elbert.loading import load_pretrained

        return load_pretrained(*arguments, **keywords)

    def scalars(self, model: PreTrainedModel, out: ModelOutput) -> dict[str, float]:
        """σ(W) of every exit."""
        if model.exit_weights is None:
            return {}
        weights = model.exit_weights.detach().sigmoid().tolist()
        return {f"exit_weight/{i}": weight for i, weight in enumerate(weights, 1)}

    def rules(self) -> RuleSet:
        from modeling.elbert.rules import keys_read

        return RuleSet(
            name_key="thres_name",
            keys=self.table.exit_keys,
            reads=keys_read,
            scan=scan_rule,
            window=window_at_exit,
            eager_when_low=("cnt_thres", "margin"),
        )


def scan_rule(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """Exit layers (settings, examples), or (examples,) for plain numbers."""
    from modeling.elbert.rules import ExitRule, scan

    return scan(ExitRule(**setting), tensors["all_logits"])


def window_at_exit(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """How many layers the window spans that ended each example's pass, 0 where none did.

    (examples,). Asked of the rule itself: with its entropy test off, and one more layer, so that a
    window that holds at the last layer differs from one that never holds.
    """
    import torch

    from modeling.elbert.rules import RULES

    logits, kinds = tensors["all_logits"], RULES[setting["thres_name"]]
    exits = scan_rule(setting, tensors)
    if kinds.classes.beyond is None:
        return torch.zeros_like(exits)
    # Of patience, exit_thres says which values agree: there it stays.
    alone = setting if kinds.classes.beyond else {**setting, "exit_thres": 0.0}
    by_window = scan_rule(alone, {"all_logits": torch.cat((logits, logits[-1:]))})
    return torch.where(by_window == exits, setting["cnt_thres"] + kinds.classes.beyond, 0)
