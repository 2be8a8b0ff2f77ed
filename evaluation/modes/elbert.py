"""ELBERT, `--model_type albert`: a rule over the exits' answers so far stops an example."""

import torch
from transformers.utils import ModelOutput

from evaluation.modes.base import RuleSet, Setting, Tensors, Trace
from evaluation.modes.examples import ExampleMode
from modeling.elbert.model import ElbertForSequenceClassification
from modeling.elbert.rule_table import NEVER, RULES, keys_read
from modeling.elbert.rules import ExitRule, exit_scores, normalised_entropy, scan


class Elbert(ExampleMode):
    """A rule over the exits' answers so far stops an example."""

    name, model_class = "albert", ElbertForSequenceClassification
    optional = ("exit_weights",)  # the published code does not save it
    loss = "sum over the N exits of weight × task loss (mean over the batch); the weights sum to N"

    def scalars(self, model: ElbertForSequenceClassification, out: ModelOutput) -> dict[str, float]:
        """σ(W) of every exit."""
        if model.exit_weights is None:
            return {}
        weights = model.exit_weights.detach().sigmoid().tolist()
        return {f"exit_weight/{i}": weight for i, weight in enumerate(weights, 1)}

    def rules(self) -> RuleSet:
        return RuleSet(
            name_key="thres_name",
            keys=self.table.exit_keys,
            reads=keys_read,
            scan=scan_rule,
            window=window_at_exit,
            cause=lambda rule: "entropy" if RULES[rule].classes.or_entropy else rule,
            trace=entropies,
            eager_when_low=("cnt_thres", "margin"),
            unswept=without_exits,
        )


def without_exits(regression: bool) -> dict[str, str]:
    """Rules that never fire on the task's answers, and why."""
    why = "it never fires on a predicted value, so every example goes to the last layer"
    return {name: why for name, kinds in RULES.items() if regression and kinds.values is NEVER}


def scan_rule(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """Exit layers (settings, examples), or (examples,) for plain numbers."""
    return scan(ExitRule(**setting), tensors["all_logits"])


def entropies(setting: Setting, tensors: Tensors) -> Trace | None:
    """Every layer's entropy against exit_thres, of rules that compare these."""
    logits, rule = tensors["all_logits"], setting["thres_name"]
    if logits.shape[-1] == 1 or (rule != "entropy" and not RULES[rule].classes.or_entropy):
        return None
    limit = torch.full(logits.shape[1:2], setting["exit_thres"])
    return Trace({"entropy": normalised_entropy(exit_scores(logits))}, limit, "exit_thres")


def window_at_exit(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """How many layers the window spans that ended each example's pass, 0 where none did.

    (examples,). Asked of the rule itself: with its entropy test off, and one more layer, so that a
    window that holds at the last layer differs from one that never holds.
    """
    logits = tensors["all_logits"]
    rule = RULES[setting["thres_name"]].of(logits.shape[-1])
    exits = scan_rule(setting, tensors)
    if rule.beyond is None:
        return torch.zeros_like(exits)
    alone = {**setting, "exit_thres": 0.0} if rule.or_entropy else setting
    by_window = scan_rule(alone, {"all_logits": torch.cat((logits, logits[-1:]))})
    return torch.where(by_window == exits, setting["cnt_thres"] + rule.beyond, 0)
