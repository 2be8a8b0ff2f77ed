"""The exit rules by name: what each remembers, what it does with an answer, and the keys it reads.

Functions are named as in `rules.py` rather than imported, so that who only names a rule, as
`change_config.py` does, loads no torch.
"""

from typing import NamedTuple


class Rule(NamedTuple):
    """A rule over one kind of answers."""

    start: str  # Size -> the state at depth 0
    step: str  # ExitRule, state, one layer's scores -> the new state, and who exits
    reads: tuple[str, ...]
    beyond: int | None = None  # layers of its window beyond cnt_thres; None: it has no window
    or_entropy: bool = False  # does a low entropy end the pass, too (never for exit_thres = 0)?


class Kinds(NamedTuple):
    """A rule over class probabilities, and over values that are predicted."""

    classes: Rule
    values: Rule

    def of(self, classes: int) -> Rule:
        return self.values if classes == 1 else self.classes


NEVER = Rule("nothing", "never_step", reads=())
STEADY_VALUE = Rule("spread_start", "spread_step", reads=("cnt_thres", "range_tmp"), beyond=0)
LEAD = ("exit_thres", "cnt_thres", "margin")

RULES = {
    "entropy": Kinds(Rule("nothing", "entropy_step", reads=("exit_thres",)), NEVER),
    "logits": Kinds(Rule("nothing", "smallest_step", reads=("exit_thres",)), NEVER),
    "max_prob": Kinds(Rule("nothing", "largest_step", reads=("exit_thres",)), NEVER),
    "bias_1": Kinds(
        Rule("streak_start", "leading_step", reads=LEAD, beyond=0, or_entropy=True), STEADY_VALUE
    ),
    "bias_2": Kinds(
        Rule("rising_start", "rising_step", reads=LEAD, beyond=0, or_entropy=True), STEADY_VALUE
    ),
    "bias_3": Kinds(
        Rule("steady_start", "steady_step", (*LEAD, "range_tmp"), beyond=0, or_entropy=True),
        STEADY_VALUE,
    ),
    "patience": Kinds(
        Rule("streak_start", "agreeing_step", reads=("cnt_thres",), beyond=1),
        Rule("close_start", "close_step", reads=("exit_thres", "cnt_thres"), beyond=1),
    ),
}


def keys_read(regression: bool) -> dict[str, tuple[str, ...]]:
    """Which keys each rule reads; a predicted value has no entropy and no class that leads."""
    return {name: (k.values if regression else k.classes).reads for name, k in RULES.items()}
