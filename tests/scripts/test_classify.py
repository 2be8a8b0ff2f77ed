"""classify.py: a table in, the same table with answers out."""

import csv
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from safetensors.torch import load_file, save_file

import classify
import elbert
import evaluation.scored_tables
from evaluation.ray_tables import TableActor
from evaluation.scored_tables import load_scorer
from evaluation.table_settings import ColumnSettings, ModelSettings
from glue.tables import read_records
from tests.commands import ROOT, ran
from tests.conftest import contents, edit_json, sentence, write

ROWS = [
    {"id": i, "sentence1": sentence(i, 3 + i % 5), "sentence2": f'{sentence(i + 1)}, "{i}"\nnext'}
    for i in range(23)
]
PAIRS = [(row["sentence1"], row["sentence2"]) for row in ROWS]
ADDED = ("label", "score", "exit_layer")


def pyarrow_table(rows: list[dict]):
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


def write_table(path: Path, rows: list[dict]) -> Path:
    """Write a table by other means than the project's."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow_table(rows), path)
    elif path.suffix == ".jsonl":
        write(path, "".join(json.dumps(row) + "\n" for row in rows))
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        write(path, text.getvalue())
    return path


def read_back(path: Path) -> list[dict]:
    """Read a table by other means than the project's."""
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    if ".jsonl" in path.name:
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text, newline="")))


def flags(model: Path, source: object, output: object, *more: object) -> list[object]:
    sources = source if isinstance(source, list) else [source]
    return ["--model_dir", model, "--input_file", *sources, "--output_file", output, *more]


def check_answers(rows: list[dict], model: Path) -> None:
    """The columns of ROWS are there as they were, and the answers are the Classifier's."""
    wanted = elbert.classify(model, PAIRS)
    assert len(rows) == len(ROWS)
    for row, brought, answer in zip(rows, ROWS, wanted, strict=True):
        assert list(row) == [*brought, *ADDED]
        assert {name: str(row[name]) for name in brought} == {k: str(v) for k, v in brought.items()}
        assert (row["label"], int(row["exit_layer"])) == (answer["label"], answer["exit_layer"])
        assert float(row["score"]) == pytest.approx(answer["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("a.csv", "b.jsonl.gz"),
        ("a.jsonl", "b.parquet"),
        ("a.parquet", "b.csv.gz"),
    ],
)
def test_every_kind_of_table_keeps_its_columns_and_gets_the_classifiers_answers(
    source, output, script, trained, tmp_path
):
    table = write_table(tmp_path / source, ROWS)
    more = ("--rows_per_part", 5)
    done = script(classify.main, *flags(trained, table, tmp_path / output, *more)).done()
    assert "23 rows" in done.err
    check_answers(read_back(tmp_path / output), trained)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source, output, "out"])


def test_several_files_all_probabilities_and_a_rule_of_ones_own(script, trained, tmp_path):
    halves = [
        write_table(tmp_path / "in" / f"{i}.jsonl", rows)
        for i, rows in enumerate((ROWS[:9], ROWS[9:]))
    ]
    more = ("--all_scores", "--prefix", "my ", "--set", "thres_name=entropy", "exit_thres=0")
    for sources in ([tmp_path / "in"], halves):
        output = tmp_path / "out.jsonl"
        script(classify.main, *flags(trained, sources, output, *more, "--overwrite")).done()
        rows = read_back(output)
        assert [row["id"] for row in rows] == [row["id"] for row in ROWS]
        for row in rows:
            probabilities = [
                row[f"my probability of {x}"] for x in ("entailment", "not_entailment")
            ]
            assert sum(probabilities) == pytest.approx(1)
            assert row["my score"] == max(probabilities)
            assert row["my exit_layer"] == 4  # of four: entropy is never below 0


def test_what_a_shell_left_of_paths_is_expanded(script, trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for number, rows in enumerate((ROWS[:9], ROWS[9:])):
        write_table(tmp_path / f"in-{number}.jsonl", rows)
    model = f"~/{trained.relative_to(tmp_path)}"
    script(classify.main, *flags(model, "~/in-*.jsonl", "~/out.jsonl")).done()
    check_answers(read_back(tmp_path / "out.jsonl"), trained)
    assert elbert.classify(model, PAIRS[0]) == elbert.classify(trained, PAIRS[0])


def test_a_tsv_is_read_as_the_training_read_its_own(script, trained, tmp_path):
    """GLUE's files keep their quotes; in a user's own, a quoted cell is the text within."""
    table = write(tmp_path / "a.tsv", 'id\tsentence1\tsentence2\n1\t"a red dog"\t"a ""man"""\n')
    as_glue = ('"a red dog"', '"a ""man"""')
    own = ("a red dog", 'a "man"')
    about = json.loads((trained / "training.json").read_text())
    for pair, kept_flags in ((as_glue, {}), (own, {"task_name": None})):
        about["provenance"]["flags"].update(kept_flags)
        edit_json(trained / "training.json", **about)
        output = tmp_path / f"{len(kept_flags)}.jsonl"
        script(classify.main, *flags(trained, table, output)).done()
        (row,) = read_back(output)
        assert (row["sentence1"], row["sentence2"]) == pair
        assert row["score"] == pytest.approx(elbert.classify(trained, pair)["score"], abs=1e-5)


def test_long_texts_are_answered_in_windows(script, trained, tmp_path):
    texts = [sentence(i, 60) for i in range(4)]
    rows = [{"id": i, "sentence1": text} for i, text in enumerate(texts)]
    table = write_table(tmp_path / "a.jsonl", rows)
    output = tmp_path / "b.jsonl"
    for stop_score in (None, 0.5):
        more = ("--long_texts", "windows", "--overwrite")
        if stop_score:
            more += ("--stop_score", stop_score)
        script(classify.main, *flags(trained, table, output, *more)).done()
        in_windows = elbert.Classifier(trained, long_texts="windows", stop_score=stop_score)
        for row, answer in zip(read_back(output), in_windows(texts), strict=True):
            assert row["windows"] == answer["windows"] > (1 if stop_score is None else 0)
            assert (row["label"], row["exit_layer"]) == (answer["label"], answer["exit_layer"])
            assert row["score"] == pytest.approx(answer["score"], abs=1e-5)
    refused = script(
        classify.main, *flags(trained, table, output, "--overwrite", "--stop_score", 0.5)
    )
    refused.refused("stop_score = 0.5", "windows")


@pytest.mark.slow
def test_through_pipes(trained, tmp_path):
    table = write_table(tmp_path / "a.csv", ROWS)
    command = [sys.executable, ROOT / "classify.py"]
    command += flags(trained, "-", "-", "--input_format", "csv", "--output_format", "jsonl")
    with table.open("rb") as file:
        done = subprocess.run(list(map(str, command)), stdin=file, capture_output=True, check=True)
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()]
    check_answers(rows, trained)
    # A row without a text is listed, as in a file.
    lines = ['{"sentence1": "a red dog", "sentence2": "a man"}', '{"sentence2": "a man"}']
    output = tmp_path / "b.jsonl"
    command = [sys.executable, ROOT / "classify.py", *flags(trained, "-", output)]
    command += ["--input_format", "jsonl", "--on_error", "skip"]
    text = "\n".join(lines).encode()
    subprocess.run(list(map(str, command)), input=text, capture_output=True, check=True)
    assert len(read_back(output)) == 1
    assert "line 2" in (tmp_path / "b.jsonl.skipped.txt").read_text()


def test_rows_without_a_text_stop_the_work_before_it_begins_or_are_listed(
    script, trained, tmp_path
):
    rows = [*ROWS[:4], {"id": 4, "sentence1": None, "sentence2": "a"}, *ROWS[5:8]]
    table = write_table(tmp_path / "a.jsonl", rows)
    output = tmp_path / "b.jsonl"
    refused = script(classify.main, *flags(trained, table, output))
    refused.refused("line 5", "sentence1", "--on_error skip")
    assert not output.exists()
    done = script(classify.main, *flags(trained, table, output, "--on_error", "skip")).done()
    assert "rows left out: 1\n" in done.err
    assert [row["id"] for row in read_back(output)] == [0, 1, 2, 3, 5, 6, 7]
    skipped = tmp_path / "b.jsonl.skipped.txt"
    assert "line 5" in skipped.read_text()
    # It is of this output: not to be lost with another one, and not to stand beside it.
    output.unlink()
    whole = write_table(tmp_path / "whole.jsonl", ROWS)
    script(classify.main, *flags(trained, whole, output)).refused(f"{skipped} exists")
    script(classify.main, *flags(trained, whole, output, "--overwrite")).done()
    assert not skipped.exists()


def test_what_would_lose_something_is_refused(script, trained, tmp_path):
    table = write_table(tmp_path / "a.csv", ROWS)
    output = write(tmp_path / "b.csv", "mine")
    labelled = write_table(tmp_path / "c.csv", [{**row, "label": 1} for row in ROWS])
    cases = [
        (flags(trained, table, output), "exists"),
        (flags(trained, table, table, "--overwrite"), "among the tables to read"),
        (flags(trained, tmp_path, output, "--overwrite"), "among the tables to read"),
        (flags(trained, labelled, tmp_path / "d.csv"), "--prefix"),
        (flags(trained, table, tmp_path / "d.tsv"), "tab or line break in 'sentence2'"),
        (flags(trained, table, tmp_path / "d.txt"), ".parquet"),
        (flags(trained, tmp_path / "none.csv", tmp_path / "d.csv"), "no such file"),
        (
            flags(trained, [table, labelled], tmp_path / "d.csv", "--prefix", "x"),
            "classify them one",
        ),
        (flags(trained, table, tmp_path / "d.csv", "--set", "exit_thres=2"), "exit_thres"),
        (flags(trained, table, tmp_path / "d.csv", "--set", "exit_price=0.2"), "has no effect"),
        (flags(trained, "-", tmp_path / "d.csv"), "--input_format"),
        (flags(trained, table, tmp_path / "d.csv", "--input_format", "tsv"), "standard input"),
        (flags(trained, table, tmp_path / "d.csv", "--output_format", "tsv"), "standard output"),
        (flags(trained, table, tmp_path / "d.csv", "--text_column_names", "x"), "no column 'x'"),
    ]
    before = table.read_bytes()
    for arguments, words in cases:
        script(classify.main, *arguments).refused(words)
    assert (table.read_bytes(), output.read_text()) == (before, "mine")
    assert not (tmp_path / "d.csv").exists()


def test_what_parquet_cannot_hold_is_found_before_the_work(script, trained, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(evaluation.scored_tables, "SURVEY_ROWS", 2)
    monkeypatch.setattr(evaluation.scored_tables, "answered", pytest.fail)
    output = tmp_path / "b.parquet"
    cases = [
        ([1, 2, {"a": 1}, {"a": 2}], "do not fit into one Parquet file"),
        ([1, "a", 2, 3], "line 1, or one of the next 2 rows, does not fit into Parquet"),
        ([2**53 + 1, 1, 0.5, 1.5], "line 1, or one of the next 2 rows, does not fit into Parquet"),
        ([{}, {}, {}, {}], "the column 'new' does not fit into Parquet"),
        ([[1], [2], [3], [[2**63]]], "'new' has a whole number of more than 64 bits"),
    ]
    for number, (values, words) in enumerate(cases):
        rows = [{**row, "new": value} for row, value in zip(ROWS, values, strict=False)]
        table = write_table(tmp_path / f"{number}.jsonl", rows)
        script(classify.main, *flags(trained, table, output)).refused(words)


def test_tables_of_several_kinds_are_one_parquet_file_with_the_types_of_all(
    script, trained, tmp_path
):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = {"sentence1": ["a man"] * 2, "sentence2": ["a dog"] * 2}
    times = pyarrow.array([34_200_000_000_001, None], pyarrow.time64("ns"))
    counts = pyarrow.array([2**64 - 1, 1], pyarrow.uint64())
    parquet.write_table(pyarrow.table({**texts, "at": times, "n": counts}), tmp_path / "a.parquet")
    more = {"sentence1": "a cat", "sentence2": "a dog", "at": None, "n": None}
    write_table(tmp_path / "c.jsonl", [more])
    sources = [tmp_path / "a.parquet", tmp_path / "c.jsonl"]
    output = tmp_path / "b.parquet"
    script(classify.main, *flags(trained, sources, output)).done()
    scored = parquet.read_table(output)
    assert scored["at"].combine_chunks().equals(pyarrow.concat_arrays([times, times[1:]]))
    assert scored["n"].to_pylist() == [2**64 - 1, 1, None]
    assert scored["label"].null_count == 0
    script(classify.main, *flags(trained, sources, tmp_path / "b.csv")).done()
    assert [row["at"] for row in read_back(tmp_path / "b.csv")] == ["09:30:00.000000001", "", ""]


def test_an_actor_keeps_the_columns_of_a_batch_as_they_are(trained):
    pyarrow = pytest.importorskip("pyarrow")
    times = pyarrow.array([1, 2, 3], pyarrow.time64("ns"))
    texts = ["a man", None, "a cat"]
    batch = pyarrow.table({"sentence1": texts, "sentence2": ["a dog"] * 3, "at": times})
    settings = ModelSettings(model_dir=str(trained)), ColumnSettings(on_error="skip")
    _, files = load_scorer(*settings)
    answered = TableActor(*settings, batch.column_names, files)(batch)
    assert answered.column_names == [*batch.column_names, *ADDED]
    assert answered.select(batch.column_names).equals(batch.take([0, 2]))
    wanted = elbert.classify(trained, [("a man", "a dog"), ("a cat", "a dog")])
    assert answered["label"].to_pylist() == [answer["label"] for answer in wanted]


FEW = ("--rows_per_part", 5)


@pytest.fixture
def before_part(monkeypatch) -> dict[int, Callable[[], object]]:
    """What happens before a part is answered, by the part's number in this run; {} is nothing."""
    happens: dict[int, Callable[[], object]] = {}
    numbers = count()
    usual = evaluation.scored_tables.answered

    def answered(scorer, batch):
        happens.pop(next(numbers), lambda: None)()
        return usual(scorer, batch)

    monkeypatch.setattr(evaluation.scored_tables, "answered", answered)
    return happens


def stop() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def unfinished(script, trained, tmp_path, before_part) -> SimpleNamespace:
    """A run that was stopped after two parts of five rows each."""
    table = write_table(tmp_path / "a.csv", ROWS)
    whole, output = tmp_path / "whole.csv", tmp_path / "b.csv"
    script(classify.main, *flags(trained, table, whole, *FEW)).done()
    before_part[5 + 2] = stop
    assert script(classify.main, *flags(trained, table, output, *FEW)).status == 130
    assert not output.exists()
    return SimpleNamespace(
        flags=flags(trained, table, output, *FEW),
        table=table,
        output=output,
        whole=whole.read_bytes(),
        folder=tmp_path / ".b.csv.parts",
    )


def test_an_interrupted_run_goes_on(script, unfinished):
    done = script(classify.main, *unfinished.flags).done()
    assert "rows answered before: 10;" in done.err
    assert unfinished.output.read_bytes() == unfinished.whole
    assert not unfinished.folder.exists()


def rows_in_another_order(trained: Path, table: Path) -> None:
    """Of the same size, and with the same time of its last change."""
    status = table.stat()
    write_table(table, ROWS[::-1])
    os.utime(table, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert table.stat().st_size == status.st_size


def other_weights(trained: Path, table: Path) -> None:
    weights = trained / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor / 2 for name, tensor in tensors.items()}, weights)


OTHER_RUNS: dict[str, Callable[[Path, Path], object]] = {
    "config.json": lambda trained, _: edit_json(trained / "config.json", hidden_act="relu"),
    "config.json, ": lambda trained, _: edit_json(
        trained / "config.json", id2label={"0": "yes", "1": "no"}, label2id={"yes": 0, "no": 1}
    ),
    "exit_config.json": lambda trained, _: write(
        trained / "exit_config.json", '{"exit_thres": 0.9}'
    ),
    "tokenizer_config.json": lambda trained, _: edit_json(
        trained / "tokenizer_config.json", model_max_length=8
    ),
    "special_tokens_map.json": lambda trained, _: write(trained / "special_tokens_map.json", "{}"),
    "model.safetensors": other_weights,
    "a.csv": rows_in_another_order,
    "the exit keys": lambda trained, table: write(table.parent / ".b.csv.parts" / "run.json", "["),
    "quotes in a TSV": lambda trained, _: write(trained / "training.json", "{}"),
}


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_a_run_does_not_go_on_with_anything_else_than_it_read(name, script, trained, unfinished):
    OTHER_RUNS[name](trained, unfinished.table)
    before = contents(unfinished.folder)
    script(classify.main, *unfinished.flags).refused("differs in: ", name.strip(", "))
    assert (contents(unfinished.folder), unfinished.output.exists()) == (before, False)
    script(classify.main, *unfinished.flags, "--overwrite").done()
    assert unfinished.output.exists()


def test_a_run_does_not_go_on_with_other_flags_nor_for_a_touched_table(script, trained, unfinished):
    script(classify.main, *unfinished.flags, "--set", "exit_thres=0.9").refused("the exit keys")
    unfinished.table.touch()  # the same content
    script(classify.main, *unfinished.flags).done()
    assert unfinished.output.read_bytes() == unfinished.whole


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("part-00000001.csv", lambda content: content[: len(content) // 2]),
        ("part-00000000.csv", lambda content: b""),
        ("parts.jsonl", lambda content: content[:-10]),
        ("parts.jsonl", lambda content: b""),
    ],
)
def test_rows_of_a_part_that_is_not_as_it_was_written_are_answered_again(
    name, content, script, unfinished
):
    part = unfinished.folder / name
    part.write_bytes(content(part.read_bytes()))
    script(classify.main, *unfinished.flags).done()
    assert unfinished.output.read_bytes() == unfinished.whole


def test_a_part_that_changes_before_the_output_is_written_is_an_error(
    script, unfinished, before_part
):
    part = unfinished.folder / "part-00000001.csv"
    before_part[5 + 3 + 1] = lambda: part.write_bytes(b"")
    script(classify.main, *unfinished.flags).refused("part-00000001.csv was changed")
    assert not unfinished.output.exists()
    script(classify.main, *unfinished.flags).done()
    assert unfinished.output.read_bytes() == unfinished.whole


EDITS: dict[str, Callable[[list[dict]], list[dict]]] = {
    "fewer": lambda rows: rows[:12],
    "more": lambda rows: [*rows, *rows[:7]],
    "others": lambda rows: rows[::-1],
}


@pytest.mark.parametrize("keeps_time", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_a_table_that_changes_while_it_is_read_is_an_error(
    edit, keeps_time, script, trained, tmp_path, before_part
):
    table = write_table(tmp_path / "a.jsonl", ROWS)
    output, before, status = tmp_path / "b.jsonl", table.read_bytes(), table.stat()

    def change() -> None:
        write_table(table, EDITS[edit](ROWS))
        if keeps_time:
            os.utime(table, ns=(status.st_atime_ns, status.st_mtime_ns))

    before_part[2] = change
    script(classify.main, *flags(trained, table, output, *FEW)).refused("a.jsonl was changed")
    assert not output.exists()
    table.write_bytes(before)
    script(classify.main, *flags(trained, table, output, *FEW)).done()
    check_answers(read_back(output), trained)


def test_a_model_that_changes_while_it_is_loaded_is_an_error(
    script, trained, tmp_path, monkeypatch
):
    table = write_table(tmp_path / "a.csv", ROWS)
    usual = evaluation.scored_tables.Scorer

    def loading(*settings):
        scorer = usual(*settings)
        edit_json(trained / "config.json", id2label={"0": "no", "1": "yes"})
        return scorer

    monkeypatch.setattr(evaluation.scored_tables, "Scorer", loading)
    refused = script(classify.main, *flags(trained, table, tmp_path / "b.csv"))
    refused.refused("config.json was changed")
    assert not (tmp_path / "b.csv").exists()


def test_a_folder_of_parts_that_is_not_a_runs_own_is_refused_first(script, trained, tmp_path):
    table = write_table(tmp_path / "a.csv", ROWS)
    mine = tmp_path / "mine"
    mine.mkdir()
    write(mine / "precious", "x")
    arguments = flags(trained, table, tmp_path / "b.csv", "--overwrite")
    parts = tmp_path / ".b.csv.parts"
    for make in (parts.symlink_to, lambda source: shutil.copytree(source, parts)):
        make(mine)
        script(classify.main, *arguments).refused(".b.csv.parts")
        assert (parts / "precious").read_text() == "x"
        assert not (tmp_path / "b.csv").exists()
        parts.unlink() if parts.is_symlink() else shutil.rmtree(parts)


def test_what_a_strangers_file_says_does_not_reach_the_terminal(script, trained, tmp_path):
    table = write(tmp_path / "a.csv", "\x1b[2Jid,x\n1,hi\n")
    output = tmp_path / "b.csv"
    refused = script(classify.main, *flags(trained, table, output))
    refused.refused("?[2Jid")
    edit_json(
        trained / "config.json",
        id2label={"0": "\x1b[2J", "1": "b"},
        label2id={"\x1b[2J": 0, "b": 1},
    )
    table = write_table(tmp_path / "a.csv", ROWS)
    script(classify.main, *flags(trained, table, output)).refused("config.json", "'\\x1b[2J'")
    assert not output.exists()


@pytest.mark.slow
def test_a_killed_run_goes_on(script, trained, tmp_path):
    """SIGKILL in the middle; then the table is that of a run without."""
    rows = [{"id": i, "sentence1": sentence(i, 30), "sentence2": ""} for i in range(1200)]
    table = write_table(tmp_path / "a.csv", rows)
    whole, output = tmp_path / "whole.csv", tmp_path / "b.csv"
    few = ("--rows_per_part", 20)
    command = [sys.executable, ROOT / "classify.py", *flags(trained, table, output, *few)]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE)
    while len(list((tmp_path / ".b.csv.parts").glob("part-*"))) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not output.exists()
    assert "rows answered before: " in script(classify.main, *command[2:]).done().err
    script(classify.main, *flags(trained, table, whole, *few)).done()
    assert output.read_bytes() == whole.read_bytes()
    assert [row["id"] for _, row in read_records(output)[1]] == [str(i) for i in range(1200)]


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes with two CPUs each, on this machine; its address."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    started.add_node(num_cpus=2)
    yield started.address
    started.shutdown()


def shard_rows(folder: Path) -> list[dict]:
    """The rows of a folder's Parquet files, by id."""
    rows = [row for path in folder.glob("*.parquet") for row in read_back(path)]
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.slow
def test_a_cluster_answers_as_one_process_though_a_worker_is_killed(
    cluster, script, trained, tmp_path
):
    source = tmp_path / "in"
    for shard in range(8):
        ids = range(shard * 100, shard * 100 + 100)
        rows = [{"id": i, "sentence1": sentence(i, 9), "sentence2": sentence(i)} for i in ids]
        write_table(source / f"{shard}.parquet", rows)
    output = tmp_path / "scored"
    few = ("--rows_per_part", 20)
    command = [sys.executable, ROOT / "classify.py", *flags(trained, source, output, *few)]
    command += ["--ray", cluster]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".scored.*.partial/*.parquet")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    named = psutil.process_iter(["cmdline"])
    workers = [worker for worker in named if "TableActor" in " ".join(worker.info["cmdline"] or ())]
    workers[0].kill()
    _, messages = process.communicate(timeout=300)
    assert process.returncode == 0, messages
    assert "3 actor(s)" in messages
    found = shard_rows(output)
    alone = tmp_path / "alone.parquet"
    script(classify.main, *flags(trained, source, alone, *few)).done()
    wanted = sorted(read_back(alone), key=lambda row: row["id"])
    assert [row["id"] for row in found] == list(range(800))
    for row, expected in zip(found, wanted, strict=True):
        assert row.pop("score") == pytest.approx(expected.pop("score"), abs=1e-5)
        assert row == expected


def test_an_actor_that_starts_later_has_the_same_model_or_none(trained):
    """A cluster starts a lost actor again."""
    pytest.importorskip("pyarrow")
    settings = ModelSettings(model_dir=str(trained)), ColumnSettings()
    _, files = load_scorer(*settings)
    names = ["sentence1", "sentence2"]
    assert TableActor(*settings, names, files).scorer
    edit_json(trained / "config.json", hidden_act="relu")
    with pytest.raises(elbert.UserError, match=r"config\.json was changed"):
        TableActor(*settings, names, files)


@pytest.mark.slow
def test_what_a_cluster_cannot_do_is_said(cluster, script, trained, tmp_path):
    table = write_table(tmp_path / "a.parquet", ROWS)
    broken = write_table(tmp_path / "b.parquet", [{**ROWS[0], "sentence1": None}, *ROWS[1:]])
    text_table = write_table(tmp_path / "a.csv", ROWS)
    out = tmp_path / "out_folder"
    on = ("--ray", cluster)
    for arguments, words in (
        (flags(trained, table, out, *on, "--concurrency", 4), "at most 3 actors fit"),
        (flags(trained, text_table, out, *on), "Parquet"),
        (flags(trained, table, tmp_path, *on), "exists"),
        (flags(trained, broken, out, *on), "1 rows without a text in column 'sentence1'"),
        (flags(trained, table, out, "--ray", "127.0.0.1:1"), "--ray 127.0.0.1:1"),
    ):
        script(classify.main, *arguments).refused(words)
    assert not out.exists()
    done = script(classify.main, *flags(trained, broken, out, *on, "--on_error", "skip")).done()
    assert "rows left out: 1\n" in done.err
    assert [row["id"] for row in shard_rows(out)] == list(range(1, 23))


@pytest.mark.slow
def test_spark_answers_as_one_process(trained, tmp_path):
    pytest.importorskip("pyspark")
    if not shutil.which("java"):
        pytest.skip("Spark needs Java: apt-get install default-jre-headless")
    rows = [{"id": i, "sentence1": sentence(i, 3 + i % 5)} for i in range(40)]
    for shard in range(2):
        write_table(tmp_path / "in" / f"{shard}.parquet", rows[shard::2])
    command = (sys.executable, ROOT / "examples/spark_classify.py", "--model_dir", trained)
    folders = ("--input", tmp_path / "in", "--output", tmp_path / "scored")
    # Spark's own workers know the project as they would where it is installed.
    python = {"PYTHONPATH": ROOT, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran(*command, *folders, **python)
    found = shard_rows(tmp_path / "scored")
    wanted = elbert.classify(trained, [row["sentence1"] for row in rows])
    for row, brought, answer in zip(found, rows, wanted, strict=True):
        assert row.pop("score") == pytest.approx(answer.pop("score"), abs=1e-5)
        assert row == {**brought, **answer}


def test_an_answer_that_is_not_certain_enough_is_left_empty_and_counted(
    trained, glue, script, tmp_path
):
    rows = [f"{sentence(i)},{sentence(i + 1)}" for i in range(30)]
    table = write(tmp_path / "new.csv", "\n".join(["sentence1,sentence2", *rows]))

    def answers(*more) -> tuple[list[dict], str]:
        output = tmp_path / "scored.csv"
        flags = ("--input_file", table, "--output_file", output, "--overwrite", *more)
        err = script(classify.main, "--model_dir", trained, *flags).done().err
        with output.open() as file:
            return list(csv.DictReader(file)), err

    complete, _ = answers()
    scores = sorted(float(row["score"]) for row in complete)
    limit = (scores[9] + scores[10]) / 2
    abstaining, err = answers("--abstain_below", limit)
    for row, full_row in zip(abstaining, complete, strict=True):
        is_certain = float(full_row["score"]) >= limit
        assert row == (full_row if is_certain else {**full_row, "label": ""})
    assert "10 rows of this run have no label" in err
    command = ("--model_dir", trained, "--input_file", table, "--output_file", tmp_path / "b.csv")
    share = ("--abstain_below", "20%")
    script(classify.main, *command, *share).refused("has no reference", "--do_eval")
    script(classify.main, *command, "--abstain_below", "1.5").refused("a probability from 0 to 1")
    glue(trained, "--do_eval").done()
    script(classify.main, *command, *share).done()
