"""The hyper-parameter search's grid, the flags of its runs, and the table of what they gave."""

import optuna
import pytest
from optuna.trial import create_trial

import training.search as hp_search
from evaluation.settings import GROUPS
from glue.tasks import get_task
from modeling import UserError
from training.fine_tuning_settings import SearchSettings
from training.metric_at_cost import MetricAtCost
from training.search import flags_of_every_run, grid, ranking, ties, value_of
from training.settings import SettingsParser, parse
from training.study import RANGES, SearchRun

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def parsed(*flags: str) -> SearchSettings:
    return parse([SearchSettings], None, flags)[0]


# Grid and flags.


def test_the_default_grid_is_the_published_one_but_for_the_epochs():
    """The notebook's LEARNING_RATES, TRAIN_BATCH_SIZES, N_SEEDS and MULTI_SEEDS_TASKS.

    Its MAX_EPOCHS is 4, with a checkpoint of each epoch; a run here has a schedule of its own.
    """
    runs = grid(parsed(), get_task("RTE"))
    assert len(runs) == len(set(runs)) == 3 * 2 * 3 * 5
    assert {run.learning_rate for run in runs} == {5e-5, 3e-5, 2e-5}
    assert {run.batch_size for run in runs} == {16, 32}
    assert {run.epochs for run in runs} == {2, 3, 4}
    for name in ("cola", "sts-b", "rte", "mrpc", "sst-2", "wnli"):
        assert {run.seed for run in grid(parsed(), get_task(name))} == {0, 1, 2, 3, 4}
    for name in ("mnli", "qnli", "qqp"):
        assert {run.seed for run in grid(parsed(), get_task(name))} == {0}


def test_the_help_tells_what_is_published_from_what_is_not():
    text = " ".join(SettingsParser([SearchSettings]).format_help().split())
    assert "default learning rates, batch sizes and seeds are those of the published" in text
    assert "The epochs are this suite's: the notebook trains for 4, with 200 --warmup_steps" in text


def test_a_value_given_twice_counts_once():
    flags = "--hp_learning_rates 1e-5 1e-5 --hp_batch_sizes 8 --hp_epochs 1 --hp_seeds 4 4"
    assert grid(parsed(*flags.split()), get_task("mnli")) == [SearchRun(1e-5, 8, 1.0, 4)]


def test_the_runs_get_every_flag_but_those_of_the_search():
    kept = "--model_type albert --set a=1 b=2 --max_steps -1".split()
    argv = ["--hp_search", *kept, "--hp_seeds", "0", "1", "--do_predict"]
    assert flags_of_every_run(argv, GROUPS) == kept


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--learning_rate", "--hp_learning_rates"),
        ("--per_gpu_train_batch_size", "--hp_batch_sizes"),
        ("--num_train_epochs", "--hp_epochs"),
        ("--seed", "--hp_seeds"),
    ],
)
def test_a_flag_that_is_searched_is_refused(flag, instead):
    with pytest.raises(UserError, match=f"{flag} is what --hp_search varies.*{instead}"):
        flags_of_every_run(["--hp_search", flag, "1"], GROUPS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--hp_learning_rates", "expected at least one argument"),
        ("--hp_learning_rates 2", "2: allowed is a number from 0 to 1"),
        ("--hp_learning_rates nan", "nan: allowed is"),
        ("--hp_batch_sizes 0", "0: allowed is a number from 1 to"),
        ("--hp_batch_sizes 1.5", "invalid whole number value: '1.5'"),
        ("--hp_epochs three", "invalid number value: 'three'"),
        ("--hp_seeds -1", "-1: allowed is a number from 0"),
    ],
)
def test_wrong_or_missing_values_are_named(flags, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(*flags.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_search_is_not_told_to_resume():
    with pytest.raises(UserError, match="goes on by itself"):
        flags_of_every_run(["--hp_search", "--resume_from_checkpoint"], GROUPS)


# The table.


def finished(run: SearchRun, value: float, cost: float) -> optuna.trial.FrozenTrial:
    return create_trial(
        params=run._asdict(),
        distributions=RANGES,
        value=value,
        user_attrs={"computation_cost": cost, "checkpoint": run.name, "machine": "m"},
    )


def test_the_best_setting_has_the_highest_mean_over_all_seeds():
    low, high, alone = (SearchRun(rate, 16, 3.0, 0) for rate in (2e-5, 3e-5, 5e-5))
    trials = [
        finished(low, 0.80, 0.5),
        finished(low._replace(seed=1), 0.90, 0.7),  # the best run, but not the best setting
        finished(high, 0.84, 1.0),
        finished(high._replace(seed=1), 0.88, 0.8),
        finished(alone, 0.99, 0.1),  # its second seed is missing
        finished(high._replace(seed=2), 0.10, 0.1),  # not one of the seeds asked for
    ]
    first, second = ranking(trials, {0, 1})
    assert first.setting == (3e-5, 16, 3.0)
    assert first.mean == pytest.approx(0.86)
    assert first.std == pytest.approx(0.028284271)  # √(2 · 0.02²)
    assert first.cost == pytest.approx(0.9)
    assert (first.seeds, first.best.value) == (2, 0.88)
    assert second.mean == pytest.approx(0.85)
    assert second.std == pytest.approx(0.070710678)
    assert second.cost == pytest.approx(0.6)
    one = ranking(trials, {0})
    assert [row.mean for row in one] == [0.99, 0.84, 0.80]
    assert one[0].std is None


def test_ties_are_said_and_the_cheaper_comes_first(tmp_path, capsys):
    dear, cheap, worse = (SearchRun(rate, 16, 3.0, 0) for rate in (2e-5, 3e-5, 5e-5))
    equal = [finished(dear, 0.8, 0.9), finished(cheap, 0.8, 0.4), finished(worse, 0.7, 0.1)]
    rows = ranking(equal, {0})
    assert [row.setting[0] for row in rows] == [3e-5, 2e-5, 5e-5]
    assert ties(rows) == "tie: lr2e-05-bs16-ep3 has the same mean; the cheaper one comes first"
    assert ties(rows[1:]) == ""  # one seed has no standard error
    hp_search.report_search(rows, MetricAtCost("acc"), tmp_path)
    assert "nan" not in capsys.readouterr().out + (tmp_path / "hp_search.csv").read_text()
    spread = [finished(cheap._replace(seed=i), 0.8 + 0.1 * i, 1) for i in range(2)]
    rows = ranking([*spread, *(finished(dear._replace(seed=i), 0.83, 1) for i in range(2))], {0, 1})
    assert ties(rows) == "1 more within one standard error of the mean, 0.0500: no clear winner"


def metric_named(text: str) -> MetricAtCost:
    return MetricAtCost.parse(text, get_task("rte"), "--hp_metric")


def test_a_metric_at_a_cost_is_the_best_that_costs_no_more():
    results = {"metrics": {"acc": 0.9}, "frontier": {"acc": [[0.3, 0.6], [0.5, 0.8], [0.7, 0.9]]}}
    values = {
        text: value_of(results, metric_named(text))
        for text in ("acc", "acc@0.3", "acc@0.6", "acc@1")
    }
    assert values == {"acc": 0.9, "acc@0.3": 0.6, "acc@0.6": 0.8, "acc@1": 0.9}
    with pytest.raises(UserError, match=r"the rule's cheapest setting costs 0\.3000"):
        value_of(results, MetricAtCost("acc", 0.2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ac", "did you mean acc"),
        ("acc@half", "'half' is not a number"),
        ("acc@1.5", "above 0 and at most 1"),
        ("acc@nan", "above 0 and at most 1"),
    ],
)
def test_a_metric_that_cannot_be_had_is_named(text, message):
    with pytest.raises(UserError, match=message):
        metric_named(text)
