"""The tasks' metrics against scikit-learn and scipy."""

from dataclasses import replace

import hypothesis
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef, recall_score

from evaluation.metric import MetricAtCost
from glue.metrics import (
    FAST_SCORERS,
    METRICS,
    check_any_answer,
    compute_metrics,
    positive_lines,
    weighted_metrics,
    with_scorer,
)
from glue.tasks import TASKS, Task
from modeling.errors import UserError


def expected_metrics(task: str, answers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    if task == "sts-b":
        is_defined = np.ptp(answers) > 0 and np.ptp(labels) > 0
        pearson = pearsonr(answers, labels)[0] if is_defined else 0.0
        spearman = spearmanr(answers, labels)[0] if is_defined else 0.0
        return {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}
    if task == "cola":
        return {"mcc": matthews_corrcoef(labels, answers)}
    acc = (answers == labels).mean()
    if task == "mrpc":
        f1 = f1_score(labels == 1, answers == 1, zero_division=0)
        return {"acc": acc, "f1": f1, "acc_and_f1": (acc + f1) / 2}
    return {"acc": acc}


def random_answers(
    task: str, settings: int, examples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Answers (settings, examples) and labels (examples,)."""
    rng = np.random.default_rng(seed)
    if TASKS[task].is_regression:
        labels = rng.integers(0, 11, examples) / 2
        errors = rng.normal(0, 2, (settings, examples))
        return (labels + errors).round(1), labels  # with ties
    labels = rng.integers(0, TASKS[task].num_labels, examples)
    return rng.integers(0, TASKS[task].num_labels, (settings, examples)), labels


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "mnli", "sts-b"])
@given(seed=st.integers(0, 10**6), examples=st.integers(2, 40))
def test_metrics_are_those_of_scikit_learn_and_scipy(task, seed, examples):
    settings, labels = random_answers(task, 3, examples, seed)
    for answers in settings:
        expected = expected_metrics(task, answers, labels)
        assert compute_metrics(TASKS[task], answers, labels) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "sts-b"])
def test_a_weight_counts_an_example_so_often(task):
    """Metrics of a bootstrap draw are those of the examples drawn, written out."""
    settings, labels = random_answers(task, 3, 30, 1)
    weights = np.random.default_rng(2).multinomial(30, np.full(30, 1 / 30), size=5)
    weighted = METRICS[TASKS[task].metric](settings, labels, weights.astype(float))
    for setting, answers in enumerate(settings):
        for draw, counts in enumerate(weights):
            rows = np.repeat(np.arange(30), counts)
            expected = compute_metrics(TASKS[task], answers[rows], labels[rows])
            for name, value in expected.items():
                assert weighted[name][setting, draw] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("constant", ["prediction", "label"])
def test_a_correlation_with_a_constant_is_zero(constant):
    values = np.linspace(0, 5, 9)
    same = np.full(9, 0.1 + 0.2)
    predictions, labels = (same, values) if constant == "prediction" else (values, same)
    metrics = compute_metrics(TASKS["sts-b"], predictions, labels)
    assert metrics == {"pearson": 0, "spearmanr": 0, "corr": 0}


# Scorers of the user's choice.

# scikit-learn's own functions, which its scorers of these names call.
SCIKIT_LEARN = {
    "accuracy": sklearn.metrics.accuracy_score,
    "balanced_accuracy": sklearn.metrics.balanced_accuracy_score,
    "f1": f1_score,
    "f1_macro": lambda labels, answers: f1_score(labels, answers, average="macro"),
    "f1_weighted": lambda labels, answers: f1_score(labels, answers, average="weighted"),
    "matthews_corrcoef": matthews_corrcoef,
    "recall_macro": lambda labels, answers: sklearn.metrics.recall_score(
        labels, answers, average="macro"
    ),
    "neg_mean_absolute_error": lambda labels, answers: -abs(labels - answers).mean(),
    "sklearn.metrics.cohen_kappa_score": sklearn.metrics.cohen_kappa_score,
}
FOR_SCORES = {"neg_mean_absolute_error"}
FOR_TWO_CLASSES = {"f1"}


def test_all_fast_scorers_are_compared():
    assert SCIKIT_LEARN.keys() >= FAST_SCORERS.keys()


@pytest.mark.filterwarnings("ignore")  # of draws that lack a class
@pytest.mark.parametrize("name", SCIKIT_LEARN)
@hypothesis.settings(max_examples=12)
@given(seed=st.integers(0, 10**6), examples=st.integers(6, 30))
def test_a_scorer_is_scikit_learns_on_the_examples_of_each_draw(name, seed, examples):
    if name in FOR_SCORES:
        task = TASKS["sts-b"]
    else:
        task = TASKS["rte" if name in FOR_TWO_CLASSES or seed % 2 else "mnli"]
    settings, labels = random_answers(task.name, 2, examples, seed)
    draws = np.random.default_rng(seed).multinomial(examples, np.full(examples, 1 / examples), 2)
    if name.endswith("kappa_score"):
        draws = np.ones_like(draws)  # it has no value for draws of one class
        labels[:2] = 0, 1
    own = with_scorer(task, name)
    assert own.primary_metric == name
    weighted = weighted_metrics(own, settings, labels, draws.astype(float))
    for setting, answers in enumerate(settings):
        for draw, counts in enumerate(draws):
            rows = np.repeat(np.arange(examples), counts)
            expected = SCIKIT_LEARN[name](labels[rows], answers[rows])
            assert weighted[name][setting, draw] == pytest.approx(expected, abs=1e-9)


def test_a_scorer_of_several_labels_is_scikit_learns():
    task = replace(TASKS["mnli"], multi_label=True, metric="f1_micro")
    rng = np.random.default_rng(0)
    answers, labels = rng.integers(0, 2, (2, 20, 3))
    expected = f1_score(labels, answers, average="samples", zero_division=0)
    metrics = compute_metrics(with_scorer(task, "f1_samples"), answers, labels)
    assert metrics["f1_samples"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("task", "name", "words"),
    [
        ("rte", "f1_makro", "did you mean f1_macro"),
        ("mnli", "f1", "multiclass"),
        ("rte", "roc_auc", "predict_proba"),
        ("sts-b", "f1_macro", "continuous is not supported"),
        ("rte", "no_module.cost", "No module named 'no_module'"),
        ("rte", "math.no_function", "no_function"),
        ("rte", "operator.eq", "TypeError|ValueError"),
    ],
)
def test_a_scorer_without_a_value_is_refused_before_the_work(task, name, words):
    with pytest.raises(UserError, match=words):
        with_scorer(TASKS[task], name)


@pytest.mark.parametrize("name", ["neg_mean_squared_log_error", "neg_mean_poisson_deviance"])
def test_a_scorer_without_a_value_below_0_is_refused_before_a_training(name):
    check_any_answer(with_scorer(TASKS["sts-b"], "neg_mean_absolute_error"))
    with pytest.raises(UserError, match=r"may answer below 0.*module\.function"):
        check_any_answer(with_scorer(TASKS["sts-b"], name))


def test_a_function_of_the_users_own_is_found_where_the_command_runs(tmp_path, monkeypatch):
    code = "def cost(labels, answers):\n    return -10 * ((labels == 1) & (answers == 0)).sum()\n"
    (tmp_path / "dear_errors.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    task = with_scorer(TASKS["rte"], "dear_errors.cost")
    metrics = compute_metrics(task, [0, 0, 1, 1], [0, 1, 0, 1])
    assert metrics == {"acc": 0.5, "dear_errors.cost": -10}
    assert str(MetricAtCost.parse(None, task, "--hp_metric")) == "dear_errors.cost"


def test_a_metric_of_the_task_may_be_its_main_one():
    task = with_scorer(TASKS["mrpc"], "f1")
    assert (task.primary_metric, TASKS["mrpc"].primary_metric) == ("f1", "acc")
    assert list(compute_metrics(task, [0, 1], [0, 1])) == ["acc", "f1", "acc_and_f1"]
    with pytest.raises(UserError, match="--metric_name adds one"):
        MetricAtCost.parse("f1_macro", TASKS["mrpc"], "--metric_for_best_model")


def fraud_task(labels=("fraud", "ok"), **fields):
    return Task("custom", "", "", labels=labels, **fields)


@pytest.mark.parametrize("name", ["f1", "precision", "recall", "jaccard"])
def test_two_classes_with_names_have_no_positive_one_by_themselves(name):
    with pytest.raises(UserError, match=r"of which class.*--positive_label fraud or .* ok"):
        with_scorer(fraud_task(), name)
    with_scorer(fraud_task(("0", "1")), name)  # as everywhere, of 1
    with_scorer(TASKS["mrpc"], name)  # as GLUE has it


@pytest.mark.parametrize("positive", ["fraud", "ok"])
def test_a_scorer_of_one_class_is_scikit_learns_of_that_class(positive):
    """An answer that never says fraud: recall 0 of fraud, 1 of ok."""
    rng = np.random.default_rng(0)
    labels = (rng.random(200) > 0.1).astype(int)  # a tenth is fraud, class 0
    names = np.array(["fraud", "ok"])
    for answers in (np.ones(200, int), rng.integers(0, 2, 200)):
        for scorer, function in (("f1", f1_score), ("recall", recall_score)):
            task = with_scorer(fraud_task(), scorer, positive)
            found = compute_metrics(task, answers, labels)[scorer]
            options = {"pos_label": positive, "zero_division": 0}
            assert found == pytest.approx(function(names[labels], names[answers], **options))
            assert positive_lines(task) == [f"{scorer} is of the class {positive!r}"]


def test_a_positive_label_is_one_of_two_classes():
    for task in (fraud_task(), fraud_task(("a", "b", "c")), fraud_task((), metric="corr")):
        with pytest.raises(UserError, match="--positive_label a: allowed is one of two"):
            with_scorer(task, "f1", "a")
