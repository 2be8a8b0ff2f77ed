"""Scores of exit rules at equal cost, with intervals, from the answers in experiments/recorded.

A *setting* gives every example an exit layer. Any method has every cost between two settings by a
coin: each example gets one setting or the other at random. So all methods are compared as mixtures
of two settings, chosen on one half of the examples and reported on the other, and none loses by the
steps of its settings. At a *budget*, the share of the coin is such that the mean cost on the
reporting half is the budget, which needs no labels; a method whose best setting costs less stays at
that setting. The *coin* itself mixes two fixed layers of the network; the *oracle* sees the labels.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from scipy.stats import t as student

from answers.sweep import Recording
from elbert.configuration import (
    AdaptiveConfig,
    AlbertActConfig,
    EarlyExitConfig,
    ElbertConfig,
    PonderAlbertConfig,
)
from elbert.exits.rules import Learnt
from elbert.ponder.distribution import GeneralizedGeometricDist, prior
from elbert.rules import AnyRule, LayerOutput, Size, exit_scores, normalised_entropy, scan
from elbert_base.keys import MODE_KEYS, mode_name, parse_value
from exit_lab.choice import Parts, split
from exit_lab.estimates import Estimate, widen_shares
from exit_lab.frontiers import Mixture, mixture_within
from exit_lab.learnt import fit_learnt
from glue.metrics import at_exit, bootstrap_weights, concave_hull, frontier

RECORDED = Path(__file__).parents[1] / "recorded"
TASKS = ("SST-2", "SICK", "STS-B")
CALIBRATION = 1000  # rows before SST-2's dev set in the newer recordings
THRESHOLDS = 21  # of a confidence, for each layer
EPSILONS = (0.01, 0.2, 0.4, 0.6, 0.8)  # act_epsilon of the recorded settings of ACT
UNMOVED = "depth as at the start"
RESAMPLES = 1000  # of the bootstrap
PRICES = np.r_[np.geomspace(1e-3, 1e3, 400), 0]  # of computation, in score, that an oracle pays


class Answers(NamedTuple):
    """All layers' answers of one trained model.

    logits (layers, examples, classes); labels (examples,); halts: halting probabilities
    (layers, examples), where the model learns to halt; cost (layers, examples): of an exit there;
    others: its answers to further examples, where these are recorded, too.
    """

    logits: np.ndarray
    labels: np.ndarray
    cost: np.ndarray
    halts: np.ndarray | None = None
    others: "Answers | None" = None

    @property
    def scores(self) -> np.ndarray:
        """(layers, examples), whose mean is the metric: accuracy, or of values the share of the
        labels' variance that is explained."""
        if self.logits.shape[-1] > 1:
            return (self.logits.argmax(-1) == self.labels).astype(float)
        return 1 - (self.logits[..., 0] - self.labels) ** 2 / self.labels.var()


# Recordings.


MINILM = {"hidden_size": 384, "embedding_size": 384, "num_attention_heads": 12}
CONFIGS = {
    "elbert": ElbertConfig,
    "ponder_albert": PonderAlbertConfig,
    "albert_act": AlbertActConfig,
}


@cache
def config_of(path: Path) -> AdaptiveConfig:
    """Return the configuration of a recording's model, by the start and the flags stored in it."""
    with safe_open(path, framework="np") as file:
        run = json.loads(file.metadata()["run"])
    flags = run["flags"]
    model_type = mode_name(flags[flags.index("--model_type") + 1])
    keys = architecture(run["start"])
    for word in flags:
        name, is_key, text = word.partition("=")  # of --set
        if is_key:
            keys[name] = parse_value(name, text, MODE_KEYS[model_type].keys)
    return CONFIGS[model_type](**keys)


def architecture(start: str) -> dict[str, Any]:
    """Return the shape of a starting model: KIND-DEPTH, such as untied-6.

    MiniLM's own layers (untied), and those with corrections (rank8), have each weights of their
    own; a shared layer is twice as wide.
    """
    kind, _, depth = start.partition("-")
    keys: dict[str, Any] = {**MINILM, "num_hidden_layers": int(depth), "intermediate_size": 3072}
    if kind == "untied" or kind.startswith("rank"):
        keys |= {"num_hidden_groups": int(depth), "intermediate_size": 1536}
    return keys


@cache
def rows(task: str, part: str = "dev") -> dict[str, np.ndarray]:
    """Load labels, and lengths with [CLS] and [SEP]; of SST-2 also the part "phrases"."""
    tensors = load_file(RECORDED / f"{task}-rows.safetensors")
    first = CALIBRATION if task == "SST-2" else 0
    kept = slice(first) if part == "phrases" else slice(first, None)
    return {name: tensor[kept] for name, tensor in tensors.items()}


@cache
def costs(task: str, network: str, part: str = "dev") -> np.ndarray:
    """FLOPs as shares of the mean of MiniLM's six layers without exits on the dev set.

    Of an exit at each layer, (layers, examples); of a model trained to k layers, of its only
    answer, (1, examples).
    """
    path = path_of(task, network, seeds(task, network)[0])
    config = config_of(path)
    lengths = rows(task, part)["lengths"].astype(int) + config.extra_tokens
    full = unit_of(task)
    up_to_longest = range(lengths.max() + 1)
    with safe_open(path, framework="np") as file:
        has_exits = file.get_slice("all_logits").get_shape()[0] > 1
    if has_exits:
        layers = range(1, config.num_hidden_layers + 1)
        table = [[config.early_exit_flops(n, layer) for n in up_to_longest] for layer in layers]
    else:
        table = [[config.full_depth_flops(n) for n in up_to_longest]]
    return np.array(table)[:, lengths] / full


@cache
def unit_of(task: str) -> float:
    """FLOPs of MiniLM's six layers without exits, mean of the dev set."""
    config = ElbertConfig(**architecture("untied-6"))
    return float(np.mean([config.full_depth_flops(int(n)) for n in rows(task)["lengths"]]))


def path_of(task: str, network: str, seed: int) -> Path:
    """Return the file of a recording; of the other tasks ELBERT's own is named so."""
    if network == "shared-exits" and task != "SST-2":
        network = "elbert"
    part = "-test" if task == "SICK" else ""
    return RECORDED / f"{task}-{network}-{seed}{part}.safetensors"


def load(task: str, network: str, seed: int, part: str = "dev") -> Answers:
    """Load a recording; `network` as its file's name has it."""
    tensors = load_file(path_of(task, network, seed))
    labels = rows(task, part)["labels"].astype(float)
    examples = slice(len(labels)) if part == "phrases" else slice(-len(labels), None)
    logits = tensors["all_logits"][:, examples]
    halts = tensors.get("halt_probabilities")
    if halts is not None:
        halts = halts[examples].T
    has_phrases = part == "dev" and tensors["all_logits"].shape[1] > len(labels)
    others = None
    if has_phrases and len(logits) > 1:
        others = load(task, network, seed, "phrases")
    return Answers(logits, labels, costs(task, network, part), halts, others)


def seeds(task: str, network: str) -> list[int]:
    """List the seeds of which there is a recording."""
    return [n for n in range(100) if path_of(task, network, n).exists()]


# Rules: exit layers (settings, examples), from 0, of settings in the range of the rows that choose.


def exits_of(answers: Answers, rule: str, choose: np.ndarray) -> np.ndarray:
    """Find exit layers under every setting of a rule: (settings, examples)."""
    layers, examples, classes = answers.logits.shape
    if rule == "coin":
        return np.repeat(np.arange(layers)[:, None], examples, 1)
    if rule == "oracle":
        return np.stack([(answers.scores - p * answers.cost).argmax(0) for p in PRICES])
    if rule == "learnt":
        return learnt_exits(answers, choose)
    recorded = {"all_logits": torch.tensor(answers.logits)}
    windows = range(1, layers)
    config: Any = ElbertConfig(id2label=dict.fromkeys(range(classes), "class"))

    def rule_of(name: str, **setting: Any) -> AnyRule:
        return config.exit_rule(thres_name=name, **setting)

    if rule == "halting":
        if answers.halts is None:
            raise ValueError("the recording has no halting probabilities")
        recorded["halt_probabilities"] = torch.tensor(answers.halts.T)
        halted = 1 - np.cumprod(1 - answers.halts, axis=0)
        halting = PonderAlbertConfig()
        halting.exit_criteria = "threshold"
        made = [halting.exit_rule(exit_thres=quantiles(halted[:-1, choose]))]
    elif classes == 1:  # patience with a value: by how little it moves
        moves = quantiles(np.abs(np.diff(answers.logits[:, choose, 0], axis=0)))
        made = [rule_of("patience", exit_thres=moves, cnt_thres=n) for n in windows]
    elif rule == "patience":
        made = [rule_of("patience", cnt_thres=torch.tensor(windows)[:, None])]
    else:
        scores = exit_scores(recorded["all_logits"][:, choose])
        doubts = quantiles(normalised_entropy(scores).numpy())
        made = [rule_of("entropy", exit_thres=doubts)]
        if rule == "windows":  # bias_1; a window of n layers is a patience of n - 1
            made = [rule_of("bias_1", exit_thres=doubts, cnt_thres=n + 1) for n in windows]
    return torch.cat([scan(rule, recorded) for rule in made]).numpy() - 1


def learnt_exits(answers: Answers, choose: np.ndarray) -> np.ndarray:
    """Find exit layers under the rule `learnt`: (settings, examples).

    It is fitted as `sweep_exits.py --rules learnt` fits it, to the further examples.
    """
    others = answers.others
    if others is None:
        raise ValueError("the recording has no further examples")
    classes = answers.logits.shape[-1]
    fitted_on = Recording({"all_logits": torch.tensor(others.logits)}, others.labels)
    unfitted = ElbertConfig(id2label=dict.fromkeys(range(classes), "class"))
    config = fit_learnt(unfitted, fitted_on, np.arange(len(others.labels)))
    all_logits = torch.tensor(answers.logits)
    thresholds = quantiles(doubts_of(config, all_logits)[:, choose])
    rule = config.exit_rule(thres_name="learnt", exit_thres=thresholds)
    return scan(rule, {"all_logits": all_logits}).numpy() - 1


def doubts_of(config: EarlyExitConfig, all_logits: torch.Tensor) -> np.ndarray:
    """Compute how probable the rule `learnt` finds an error, at all layers but the last.

    all_logits: (layers, examples, classes). Returns (layers − 1, examples).
    """
    rule = cast(Learnt, config.exit_rule(thres_name="learnt", exit_thres=0.0))
    layers, examples, classes = all_logits.shape
    state = rule.start(Size((), examples, classes, layers), {})
    doubts = []
    for logits in all_logits[:-1]:
        doubts.append(rule.doubt(rule.scores(logits), state).numpy())
        state, _ = rule.step(LayerOutput(logits), state)
    return np.stack(doubts)


def quantiles(values: np.ndarray) -> torch.Tensor:
    """Thresholds at equal shares of the examples, layer by layer: (layers, examples) -> (n, 1)."""
    levels = np.quantile(values, np.linspace(0, 1, THRESHOLDS), axis=1)
    return torch.tensor(np.unique(np.r_[-1, levels.ravel(), levels.max() + 1]))[:, None]


def rules_of(answers: Answers) -> list[str]:
    """List the rules that a model can have.

    Values have no entropy; only models that learn to halt have halting probabilities.
    """
    names = ["coin", "patience"]
    if answers.logits.shape[-1] > 1:
        names += ["entropy", "windows"]
    if answers.others is not None:
        names.append("learnt")
    if answers.halts is not None:
        names.append("halting")
    return names


# Scores at a cost.


class Outcomes(NamedTuple):
    """Each example's score and cost under each setting of a method, (settings, examples)."""

    score: np.ndarray
    cost: np.ndarray


def outcomes(answers: Answers, rule: str, choose: np.ndarray) -> Outcomes:
    """Compute the outcomes under every setting of a rule."""
    exits = exits_of(answers, rule, choose) + 1
    return Outcomes(at_exit(answers.scores, exits), at_exit(answers.cost, exits))


def joined(found: Iterable[Outcomes]) -> Outcomes:
    """Join the settings of several methods as those of one."""
    return Outcomes(*map(np.concatenate, zip(*found, strict=True)))


def cascade(truncated: Sequence[Answers], choose: np.ndarray) -> Outcomes:
    """Outcomes of each network alone, and of each with any later one.

    The second of two networks runs, from the start, where the first's entropy is high.
    """
    found = [outcomes(one, "coin", choose) for one in truncated]
    for first, second in combinations(truncated, 2):
        logits = np.concatenate([first.logits, second.logits])
        both = np.concatenate([first.cost, first.cost + second.cost])
        found.append(outcomes(Answers(logits, first.labels, both), "entropy", choose))
    return joined(found)


@dataclass(frozen=True)
class ExampleFrontier:
    """A method's best settings, by rising cost, with what each reporting example gets under them.

    So the examples can be drawn again for an interval.
    """

    limit_cost: np.ndarray  # what a budget is compared with: mean costs, (points,)
    cost: np.ndarray  # (points, examples)
    score: np.ndarray  # (points, examples)
    mixes: bool  # may two settings be mixed, for the costs between them?


# Of each seed a frontier for each half of the examples, chosen by the other half.
Method = list[list[ExampleFrontier]]


def method_of(
    task: str, seeds: Iterable[Callable[[np.ndarray], Outcomes]], mixes: bool = True
) -> Method:
    """Make a method from each seed's outcomes, which depend on the rows that choose."""
    parts = halves(len(rows(task)["labels"]))
    return [[best(found(part.calibration), part, mixes) for part in parts] for found in seeds]


def best(found: Outcomes, parts: Parts, mixes: bool = True) -> ExampleFrontier:
    """Choose settings that no other, and no mixture of two, beats on the rows that choose."""
    score, cost = (x[:, parts.calibration].mean(1) for x in found)
    chosen = (concave_hull if mixes else frontier)(cost, score)
    score, cost = (x[chosen][:, parts.report] for x in found)
    order = cost.mean(1).argsort(kind="stable")
    return ExampleFrontier(
        limit_cost=cost.mean(1)[order], cost=cost[order], score=score[order], mixes=mixes
    )


def at(front: ExampleFrontier, budget: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each reporting example's score and cost at a budget.

    Below the cheapest setting they are that setting's. An example that costs more than the mean
    pays for it what the method buys for as much: so resampled scores are scores at the budget.
    """
    mixture = mixture_within(front.limit_cost, budget, front.mixes) or Mixture(0, 0)
    score = mixture.of(front.score)
    cost = mixture.of(front.cost)
    if mixture.share > 0:
        gained = (front.score[mixture.second] - front.score[mixture.first]).mean()
        paid = (front.cost[mixture.second] - front.cost[mixture.first]).mean()
        score = score - gained / paid * (cost - cost.mean())
    return score, cost


def at_budgets(
    method: Method, budgets: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean costs, (budgets, seeds), and scores, (budgets, seeds, examples), cross-fitted."""
    examples = sum(front.cost.shape[1] for front in method[0])
    cost, score = (np.empty((len(budgets), len(method), examples)) for _ in range(2))
    for seed, fronts in enumerate(method):
        for front, parts in zip(fronts, halves(examples), strict=True):
            for i, budget in enumerate(budgets):
                score[i, seed, parts.report], cost[i, seed, parts.report] = at(front, budget)
    return cost.mean(-1), score


def load_tokens(path: Path) -> tuple[Outcomes, np.ndarray, np.ndarray]:
    """Load ACT's recorded answers to SST-2: scores and costs under EPSILONS.

    Then of a text's tokens the mean updates, and their standard deviation, (settings, examples).
    """
    tensors = load_file(path)
    dev = rows("SST-2")
    logits = tensors["all_logits"][:, CALIBRATION:]
    tokens = tensors["tokens"][:, CALIBRATION:]
    lengths = dev["lengths"].astype(int)
    updates = np.arange(tokens.shape[-1])
    total = (tokens * updates).sum(-1)
    squares = (tokens * updates**2).sum(-1)
    config = cast(AlbertActConfig, config_of(path))
    flops = np.vectorize(config.adaptive_flops)(lengths, total)
    is_right = logits.argmax(-1) == dev["labels"]
    mean = total / lengths
    deviation = np.sqrt(np.maximum(squares / lengths - mean**2, 0))
    return Outcomes(is_right.astype(float), flops / unit_of("SST-2")), mean, deviation


def depths_of(halts: np.ndarray, path: Path) -> tuple[np.ndarray, bool]:
    """Return the expected layers, (examples,), and whether they are the prior's.

    They are where KL(p ‖ prior), the mean over the examples, is below 0.01.

    halts: λ, (layers, examples); path: of the recording.
    """
    halting = GeneralizedGeometricDist(torch.tensor(halts.T))
    layers, examples = halts.shape
    target = prior(config_of(path), examples, layers, torch.device("cpu"))
    return halting.expected_steps().numpy(), bool(target.kl_div(halting) < 0.01)


def failure(scores: np.ndarray, labels: np.ndarray, unmoved: bool) -> str:
    """Say why a training failed, or "".

    It learnt nothing where its best setting's score, of (settings, examples), is within two
    standard errors of always answering the commonest class, or the mean value; no depth where that
    is `unmoved` from where training began.
    """
    best = scores[scores.mean(1).argmax()]
    classes = (labels == labels.round()).all()
    majority = np.bincount(labels.astype(int)).max() / len(labels) if classes else 0.0
    if best.mean() < majority + 2 * best.std() / np.sqrt(len(best)):
        return "no better than one answer for all"
    return UNMOVED if unmoved else ""


def oracle(answers: Answers, budgets: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the best mean scores at these budgets, were every label known.

    For every price of computation each example takes the layer that pays best.
    """
    everyone = np.arange(len(answers.labels))
    front = best(outcomes(answers, "oracle", everyone), Parts(everyone, everyone))
    return np.array([at(front, budget)[0].mean() for budget in budgets])


# Intervals, over seeds and examples. A contrast is a list of independent tables (seeds, examples),
# whose means add up.


def difference(table: np.ndarray, other: np.ndarray) -> list[np.ndarray]:
    """Return their contrast; seed by seed where both have as many: these saw one order of data."""
    return [table - other] if len(table) == len(other) else [table, -other]


@cache
def shares_of(count: int, seed: int) -> np.ndarray:
    """Return the share of each in every resample, (count, 1 + RESAMPLES); at first, equal ones."""
    return bootstrap_weights(count, RESAMPLES, seed).T / count


def resampled(tables: np.ndarray) -> np.ndarray:
    """Return means of tables (…, seeds, examples) in every resample: (…, 1 + RESAMPLES).

    Tables of as many examples share the resamples of these, of as many seeds those.
    """
    seeds = widen_shares(shares_of(tables.shape[-2], 2).T).T
    return (tables @ shares_of(tables.shape[-1], 1) * seeds).sum(-2)


def seed_factor(contrast: list[np.ndarray]) -> float:
    """Return how much wider Student's t makes an interval that rests on so few seeds.

    The degrees of freedom are Welch and Satterthwaite's.
    """
    by_example = np.sum([table.mean(0) for table in contrast], axis=0)
    of_examples = by_example.var(ddof=1) / contrast[0].shape[1]
    both, squares = of_examples, of_examples**2 / (contrast[0].shape[1] - 1)
    for seeds, table in ((len(table), table) for table in contrast if len(table) > 1):
        noise = table.mean(0).var(ddof=1) / table.shape[1] / (seeds - 1)
        of_seeds = max(0.0, table.mean(1).var(ddof=1) / seeds - noise)
        both, squares = both + of_seeds, squares + of_seeds**2 / (seeds - 1)
    freedom = both**2 / squares if squares else np.inf
    return float(student.ppf(0.975, freedom) / student.ppf(0.975, np.inf))


def simultaneous(contrasts: list[list[np.ndarray]]) -> list[Estimate]:
    """Return means of contrasts with limits that hold all at once with 95% probability (max-T)."""
    found = np.stack([sum(map(resampled, contrast)) for contrast in contrasts])
    means = found[:, 0]
    deviations = found[:, 1:].T - means
    error = deviations.std(0)
    largest = np.abs(deviations / np.where(error > 0, error, 1)).max(1)
    reach = np.quantile(largest, 0.95) * error * [seed_factor(x) for x in contrasts]
    return [Estimate(*map(float, (m, m - r, m + r))) for m, r in zip(means, reach, strict=True)]


def cost_to_reach(
    method: Method, bar: np.ndarray, budgets: Sequence[float] | np.ndarray
) -> Estimate:
    """Return the cost of the least budget whose score reaches the bar, (1 + RESAMPLES,); or ∞.

    The interval's ends are the 2.5 and 97.5% of the resamples, in each of which the bar is its own.
    """
    cost, score = at_budgets(method, budgets)
    reached = resampled(score) >= bar
    least = np.where(reached.any(0), cost.mean(1)[reached.argmax(0)], np.inf)
    low, high = np.sort(least[1:])[[round(0.025 * RESAMPLES), round(0.975 * RESAMPLES) - 1]]
    return Estimate(*map(float, (least[0], low, high)))


def halves(examples: int) -> tuple[Parts, Parts]:
    """Cross-fitting: each half of the examples chooses once and reports once."""
    parts = split(examples, 0.5, 42)
    return parts, Parts(*reversed(parts))
