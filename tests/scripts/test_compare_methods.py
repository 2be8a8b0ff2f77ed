"""examples/compare_methods.py: trainings that are shared, resumed and never repeated; tables."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from scipy.stats import pearsonr, spearmanr

import run_glue
from tests.commands import Outcome, flags, main_of, report_of
from tests.conftest import edit_json
from tests.studies import write_study_data
from training.provenance import ROOT

METHODS = ("elbert", "pondernet", "palbert", "act-tau0.0005")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_study_data(tmp_path_factory.mktemp("study"))


@pytest.fixture
def study(script, albert_dir, data, tmp_path) -> Callable[..., Outcome]:
    """`study("--seeds", 1)` compares all methods on RTE, with two steps a training."""
    where = ("--model_name_or_path", albert_dir, "--data_dir", data)
    few = ("--max_steps", 2, "--max_seq_length", 32, "--do_lower_case", "--no_cuda")
    what = ("--output_dir", tmp_path / "out", "--tasks", "RTE", "MNLI=MNLI-tiny", *few)
    return lambda *more: script(main_of("compare_methods.py"), *where, *what, *more)


def weights(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}


@pytest.mark.slow
def test_a_study_from_trainings_to_tables(study, script, albert_dir, data, tmp_path):
    out = tmp_path / "out"
    done = study("--seeds", 1).done()
    names = {f"{task}-{method}-1" for task in ("MNLI", "RTE") for method in METHODS}
    assert {path.parent.name for path in weights(out)} == names
    assert f"1 of 8: {out / 'MNLI-elbert-1'}" in done.out
    assert "## mnli-mm" in done.out
    # An evaluation by run_glue.py finds what the study recorded.
    for name, kind in (("RTE-act-tau0.0005-1", "albert_act"), ("RTE-elbert-1", "albert")):
        evaluate = flags(albert_dir, data / "RTE", out / name, "RTE", "--do_eval")
        script(run_glue.main, *evaluate, "--model_type", kind).done()
        found, kept = report_of(out / name), load_file(out / name / "answers-rte.safetensors")
        right = kept["all_logits"].argmax(-1) == kept["labels"]
        assert right[-1].float().mean() == pytest.approx(
            found["metrics"]["acc"] if kind == "albert_act" else found["acc_per_layer"][-1]
        )
    rows = list(csv.DictReader((out / "rte.csv").open()))
    assert {row["method"] for row in rows} >= {"ELBERT, bias_1", "truncation", "PALBERT", "ACT"}
    assert (out / "rte.png").read_bytes().startswith(b"\x89PNG")
    # Finished trainings stay as they are; a seed that is new is trained.
    before = weights(out)
    again = study("--seeds", 1, 2).done()
    assert "100 × acc, seeds 1, 2;" in again.out
    assert before.items() < weights(out).items()


def test_a_report_of_nothing_is_refused_and_leaves_what_is_there(study, script, tmp_path):
    refused = study("--seeds", 1, "--report_only")
    refused.refused(tmp_path / "out", "RTE-elbert-1 is missing", "there are: none")
    assert not (tmp_path / "out").exists()
    page, where = tmp_path / "methods.md", ("--output_dir", tmp_path)
    page.write_text("of another --tau")
    (tmp_path / "RTE-act-tau0.1-1").mkdir()
    (tmp_path / "RTE-act-tau0.1-1/answers-rte.safetensors").touch()
    report = ("--report_only", "--tasks", "RTE", "--seeds", 1, *where)
    script(main_of("compare_methods.py"), *report).refused("there are: RTE-act-tau0.1")
    script(main_of("compare_methods.py"), *report, "--bf61").refused("did you mean --bf16")
    assert page.read_text() == "of another --tau"


def test_a_missing_folder_is_named_with_the_task_that_needs_it(study, data, tmp_path):
    missing = study("--tasks", "RTE")
    missing.refused(data / "MNLI", "MNLI (start of RTE): no", "--tasks MNLI=NAME")
    assert not (tmp_path / "out").exists()


def test_a_training_with_other_flags_does_not_pass_for_this_one(study, tmp_path):
    only = ("--methods", "elbert", "--tasks", "MNLI=MNLI-tiny", "--seeds", 1)
    study(*only).done()
    changed = study("--methods", "elbert", "--seeds", 0, 1, "--learning_rate", 1e-3)
    changed.refused(tmp_path / "out/MNLI-elbert-1", "learning_rate 5e-05, not 0.001")
    assert not (tmp_path / "out/MNLI-elbert-0").exists()
    edit_json(tmp_path / "out/MNLI-elbert-1/run.json", **{"weights of the starting model": ["0"]})
    study(*only).refused("weights of the starting model")


def test_a_training_that_fails_is_left_out_and_the_others_go_on(study, tmp_path):
    """With one method's settings the loss is beyond float32."""
    few = ("--methods", "elbert", "palbert", "--tasks", "MNLI=MNLI-tiny", "--seeds", 1)
    beyond = ("palbert.kl_penalty_factor=3e38", "palbert.target_halt_probability=1")
    done = study(*few, "--set", *beyond)
    done.refused("MNLI-palbert-1 is missing", "of these tasks there are: MNLI-elbert")
    assert "MNLI-palbert-1 is left out" in done.out


@pytest.mark.slow
def test_values_are_reported_without_the_rule_that_never_fires_on_them(tmp_path, script):
    """STS-B's trainings, whose answers come with the project."""
    for place in (ROOT / "docs/methods").glob("STS-B-*"):
        shutil.copytree(place, tmp_path / place.name)
    report = ("--report_only", "--tasks", "STS-B", "--output_dir", tmp_path)
    done = script(main_of("compare_methods.py"), *report).done()
    assert "ELBERT, bias_1" in done.out
    assert "DeeBERT" not in done.out
    assert "## mnli\n\nNo seed has all its methods' trainings. These are missing: M" in done.out
    for seed in (42, 43, 44):
        kept = load_file(tmp_path / f"STS-B-elbert-{seed}/answers-sts-b.safetensors")
        labels = kept["labels"].numpy()
        values = [
            50 * (pearsonr(x, labels)[0] + spearmanr(x, labels)[0])
            for x in kept["all_logits"].squeeze(-1).numpy()
        ]
        assert f"| {seed} | {' | '.join(f'{value:.1f}' for value in values)} |" in done.out
