"""What a method scores at a cost: settings chosen on some examples, reported on the others.

A *setting* gives every example an exit layer. Between two settings a method has every cost by a
random mixture: each example gets one setting or the other by chance. So all methods are compared as
mixtures of two settings, and none loses by the steps of its settings. The settings are chosen on
one half of the examples and reported on the other, then the other way round.

At a *budget*, the share of the mixture is such that the mean cost on the reporting half is the
budget, which needs no labels. A method whose best setting costs less stays at that setting.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from evaluation.exit_metrics import at_exit
from evaluation.frontier import concave_hull
from evaluation.sweep import ORACLE, RANDOM_MIXTURE
from exit_lab.choice import Parts, split
from exit_lab.frontiers import Mixture, mixture_within
from experiments.comparison.recordings import Answers
from experiments.comparison.rules import exits_of

Trained = TypeVar("Trained")  # what was trained with one seed: a network, or several


# Settings.


class Outcomes(NamedTuple):
    """Each example's score and cost under each setting: (settings, examples)."""

    score: np.ndarray
    cost: np.ndarray


def outcomes_of(answers: Answers, choosing: np.ndarray, rule: str) -> Outcomes:
    """Compute the outcomes under every setting of a rule or baseline; see `exits_of`."""
    exit_layer = exits_of(answers, choosing, rule)
    return Outcomes(
        score=at_exit(answers.scores, exit_layer),
        cost=at_exit(answers.cost, exit_layer),
    )


def join(methods: Sequence[Outcomes]) -> Outcomes:
    """Join the settings of several methods as those of one."""
    return Outcomes(
        score=np.concatenate([outcomes.score for outcomes in methods]),
        cost=np.concatenate([outcomes.cost for outcomes in methods]),
    )


def choice_of_networks(networks: Sequence[Answers], choosing: np.ndarray) -> Outcomes:
    """Compute the outcomes of networks without exits: each is a setting.

    choosing: numbers of the rows that choose.
    """
    return join([outcomes_of(network, choosing, RANDOM_MIXTURE) for network in networks])


# The best settings.


@dataclass(frozen=True, eq=False)
class ExampleFrontier:
    """A method's best settings by rising cost, with what each reporting example gets under them.

    The single examples are there for a bootstrap, which draws them.
    """

    limit_cost: np.ndarray  # what a budget is compared with: mean costs, (points,)
    cost: np.ndarray  # (points, examples)
    score: np.ndarray  # (points, examples)

    def at(self, budget: float) -> Outcomes:
        """Return each reporting example's score and cost at a budget: (examples,).

        A budget below the cheapest setting gets that setting.

        The mean cost is the budget, but that of a resample is not. So each example's score is moved
        to the mean cost, at the method's own price: what the second setting gains over the first,
        for what it costs more. Resampled scores are then scores at the budget.
        """
        mixture = mixture_within(self.limit_cost, budget, mixes=True)
        if mixture is None:
            mixture = Mixture(0, 0)
        score = mixture.of(self.score)
        cost = mixture.of(self.cost)
        if mixture.share > 0:
            gained = (self.score[mixture.second] - self.score[mixture.first]).mean()
            paid = (self.cost[mixture.second] - self.cost[mixture.first]).mean()
            score = score - gained / paid * (cost - cost.mean())
        return Outcomes(score, cost)


def choose_frontier(outcomes: Outcomes, parts: Parts) -> ExampleFrontier:
    """Choose the settings that no other, and no mixture of two, beats on the rows that choose."""
    mean_cost = outcomes.cost[:, parts.calibration].mean(1)
    mean_score = outcomes.score[:, parts.calibration].mean(1)
    chosen = concave_hull(mean_cost, mean_score)
    cost = outcomes.cost[chosen][:, parts.report]
    score = outcomes.score[chosen][:, parts.report]
    order = cost.mean(1).argsort(kind="stable")
    return ExampleFrontier(
        limit_cost=cost.mean(1)[order],
        cost=cost[order],
        score=score[order],
    )


# Methods.

Method = list[list[ExampleFrontier]]  # for each seed, one for each half that reports
Methods = dict[tuple[str, str], Method]  # by task, and by the name on the pages


def halves(examples: int) -> tuple[Parts, Parts]:
    """Split examples for cross-fitting: each half chooses once and reports once."""
    parts = split(examples, 0.5, 42)
    return parts, Parts(calibration=parts.report, report=parts.calibration)


def make_method(
    trained: Iterable[Trained],
    outcomes: Callable[[Trained, np.ndarray], Outcomes],
    examples: int,
) -> Method:
    """Make a method from what was trained on a task with each seed.

    Args:
        trained: of each seed, a network or several.
        examples: how many rows they answered.
        outcomes: computes the outcomes of one seed; the second argument are the numbers of the rows
            that choose.
    """
    method = []
    for of_seed in trained:
        fronts = []
        for parts in halves(examples):
            settings = outcomes(of_seed, parts.calibration)
            fronts.append(choose_frontier(settings, parts))
        method.append(fronts)
    return method


class Results(NamedTuple):
    """What a method gets at some budgets, cross-fitted."""

    cost: np.ndarray  # mean over the examples, (budgets, seeds)
    score: np.ndarray  # (budgets, seeds, examples)


def at_budgets(method: Method, budgets: Sequence[float] | np.ndarray) -> Results:
    """Compute what a method gets at each budget."""
    examples = sum(front.cost.shape[1] for front in method[0])
    shape = (len(budgets), len(method), examples)
    cost = np.empty(shape)
    score = np.empty(shape)
    for seed, fronts in enumerate(method):
        for front, parts in zip(fronts, halves(examples), strict=True):
            for number, budget in enumerate(budgets):
                outcomes = front.at(budget)
                score[number, seed, parts.report] = outcomes.score
                cost[number, seed, parts.report] = outcomes.cost
    return Results(cost.mean(-1), score)


def oracle_scores(answers: Answers, budgets: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the best mean scores at these budgets, were every label known: (budgets,)."""
    all_rows = np.arange(len(answers.labels))
    outcomes = outcomes_of(answers, all_rows, ORACLE)
    front = choose_frontier(outcomes, Parts(calibration=all_rows, report=all_rows))
    return np.array([front.at(budget).score.mean() for budget in budgets])
