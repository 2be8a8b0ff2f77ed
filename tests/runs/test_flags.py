"""Flags: their ranges, and files of them."""

import re
from dataclasses import dataclass, fields

import pytest
from transformers import TrainingArguments

import run_glue
from elbert import UserError
from runs.flags import (
    ALIASES,
    REPLACEMENTS,
    Allowed,
    as_dict,
    expand_paths,
    flags_of,
    is_on,
    option,
    parse,
)
from runs.settings import GROUPS, TrainingSettings


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example."""

    share: float = option(0.5, "a share, 100% at most", Allowed(low=0, high=1))
    counts: list[int] = option([1, 2], "counts", Allowed(low=1))
    name: str | None = option(None, "a name")
    quick: bool = option(False, "a switch")


def test_flags_become_the_values_of_a_dataclass():
    assert as_dict(*parse([Example], None, [])) == {
        "share": 0.5, "counts": [1, 2], "name": None, "quick": False
    }  # fmt: skip
    found = parse([Example], None, "--counts 3 --share 1 --quick --name x".split())
    assert found == (Example(share=1.0, counts=[3], name="x", quick=True),)


@pytest.mark.parametrize(
    ("word", "value"),
    [("True", True), ("yes", True), ("on", True), ("FALSE", False), ("no", False), ("~", False)],
)
def test_a_switch_may_have_true_or_false_behind_it(word, value, tmp_path):
    """As in transformers' scripts, and in YAML, whose plain words for them are many."""
    if word != "~":  # null
        assert parse([Example], None, ["--quick", word])[0].quick == value
        assert is_on("quick", ["--share", "1", "--quick", word]) == value
    file = tmp_path / "flags.yaml"
    file.write_text(f"quick: {word}\nshare: 2e-1\n")
    assert parse([Example], None, [str(file)])[0] == Example(quick=value, share=0.2)
    assert (is_on("quick", ["--quick"]), is_on("quick", ["--quicker"])) == (True, False)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--share 1.5", "argument --share: 1.5: allowed is a number from 0 to 1"),
        ("--counts 3 0", "argument --counts: 0: allowed is a whole number of at least 1"),
        ("--counts x", "argument --counts: x: allowed is a whole number of at least 1"),
        ("--sha 0.5", "error: unknown flag --sha; did you mean --share?\n"),
        ("--local_rank=0", "error: --local_rank 0: leave it out: torchrun says"),
        ("--local-rank 0", "error: --local_rank 0: leave it out: torchrun says"),
        ("--evaluation_strategy steps", "--evaluation_strategy: use --eval_strategy steps\n"),
        ("--counts 3 --zzz", "error: unknown flag --zzz; --help lists all\n"),
        ("--quick maybe", "argument --quick: maybe: allowed is true, false or nothing"),
    ],
)
def test_what_is_not_allowed_is_said(flags, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([Example], None, flags.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_an_unknown_flag_is_told_before_one_that_is_missing(script):
    script(run_glue.main, "--local_rank=0", "--do_train").refused("torchrun says the rank")
    script(run_glue.main, "--do_train").refused("required: --model_type", "--output_dir")


@pytest.mark.parametrize("flags", ["--local_rank -1", "--local-rank=3", "--local_rank 3"])
def test_a_rank_that_a_launcher_gives_is_the_one_of_its_variable(flags, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert parse([Example], None, ["--share", "0.25", *flags.split()])[0].share == 0.25


def test_what_is_advised_in_place_of_a_flag_are_flags_that_there_are():
    """And a flag that run_glue.py has is not said to be gone."""
    ours = {flag.name for group in GROUPS for flag in flags_of(group)}
    assert ours & REPLACEMENTS.keys() == {"eval_all_checkpoints"}  # other scripts lack it
    advised = set(re.findall(r"--(\w+)", " ".join(REPLACEMENTS.values())))
    assert advised - ours == {"listen", "grid"}  # of others


def test_transformers_names_of_flags_mean_the_same():
    assert {*ALIASES.values(), "eval_strategy"} <= {x.name for x in fields(TrainingArguments)}
    start = "--model_type elbert --model_name_or_path w --output_dir o "
    ours = "--per_gpu_train_batch_size 4 --per_gpu_eval_batch_size=2 --optimizer lamb --no_cuda"
    theirs = "--per_device_train_batch_size 4 --per_device_eval_batch_size=2 --optim lamb --use_cpu"
    found = [parse(GROUPS, None, (start + flags).split()) for flags in (ours, theirs)]
    assert found[0] == found[1]
    steps = parse([TrainingSettings], None, ["--eval_strategy", "steps"])[0]
    assert (TrainingSettings().looks_at_dev, steps.looks_at_dev) == (False, True)


FLAGS = {
    "json": '{"share": 0.25, "counts": [3, 4], "quick": true, "name": null}',
    "yaml": "share: 0.25\ncounts: [3, 4]\nquick: true\nname: null\n",
}


@pytest.mark.parametrize("kind", FLAGS)
def test_a_file_of_flags_stands_before_the_others(tmp_path, kind):
    path = tmp_path / f"flags.{kind}"
    path.write_text(FLAGS[kind])
    assert parse([Example], None, [str(path)]) == (Example(share=0.25, counts=[3, 4], quick=True),)
    (found,) = parse([Example], None, [str(path), "--counts", "7"])
    assert (found.share, found.counts) == (0.25, [7])


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("json", "[1]"),
        ("json", '{"share": '),
        ("yaml", "counts: [3"),
        ("yaml", "share: {a: 1}"),
        ("yaml", "[1]"),
    ],
)
def test_a_file_that_holds_no_flags_is_named(tmp_path, kind, content):
    path = tmp_path / f"flags.{kind}"
    path.write_text(content)
    with pytest.raises(UserError, match=str(path)):
        parse([Example], None, [str(path)])


def test_home_folders_and_patterns_that_a_shell_left_are_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a.csv", "b.csv", "c[1].csv"):
        (tmp_path / name).touch()
    two = [f"{tmp_path}/a.csv", f"{tmp_path}/b.csv"]
    for given, expected in (
        (["--output_dir", "~/out"], ["--output_dir", f"{tmp_path}/out"]),
        (["--output_dir=~/out"], [f"--output_dir={tmp_path}/out"]),
        (["--set", "exit_config_path=~/e"], ["--set", f"exit_config_path={tmp_path}/e"]),
        (["--input_file", "~/[ab].csv", "x"], ["--input_file", *two, "x"]),
        (["--train_files=~/?.csv"], ["--train_files", *two]),
        (["--train_file", "~/a*"], ["--train_file", two[0]]),
        (["--train_file", "~/c[1].csv"], ["--train_file", f"{tmp_path}/c[1].csv"]),
        (["--train_file", "~/none*"], ["--train_file", f"{tmp_path}/none*"]),
        (["--label_separator", "~"], ["--label_separator", "~"]),
        (["--compare", f"{tmp_path}/*"], ["--compare", f"{tmp_path}/*"]),  # seeds of a method
        (["~nobody-has-this-name/a", "a~/b"], ["~nobody-has-this-name/a", "a~/b"]),
    ):
        assert expand_paths(given) == expected
    with pytest.raises(UserError, match=r"--train_file .*: 2 paths match .*a\.csv.*takes one"):
        expand_paths(["--train_file", f"{tmp_path}/?.csv"])
    flags = tmp_path / "flags.yaml"
    flags.write_text("name: ~/x\n")
    assert parse([Example], None, [str(flags)])[0].name == f"{tmp_path}/x"
