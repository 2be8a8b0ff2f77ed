"""make_classifier.py, from a table to the file that answers."""

import csv
import json
import re
import sys
from collections import Counter

import pytest

import make_classifier
from modeling.errors import UserError
from modeling.files import read_json
from runs.output_dir import locked_for_training
from runs.processes import call
from tests.berts import save, tiny_encoder
from tests.commands import ROOT, ran
from tests.conftest import sentence, write
from tests.general_encoders import save_with_tokenizer, tiny_classifier
from training.classifier import project, steps

SAMPLE = ROOT / "configs/sample"


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def evaluated(lines: str):
    """Run lines of Python, and return the value of the last."""
    *statements, last = lines.splitlines()
    names = {}
    exec("\n".join(statements), names)
    return eval(last, names)


@pytest.mark.slow
@pytest.mark.onnx
def test_one_command_leads_from_a_table_to_a_file_that_answers(script, tmp_path):
    pytest.importorskip("onnxruntime")
    few = write(tmp_path / "few.tsv", "".join((SAMPLE / "RTE/train.tsv").open().readlines()[:241]))
    out = tmp_path / "out"
    flags = ["--train_file", few, "--model_name_or_path", SAMPLE, "--output_dir", out]
    more = ("--max_seq_length", 64, "--num_train_epochs", 1)
    done = script(make_classifier.main, *flags, *more).done()
    train, dev = (rows_of(out / f"data/{name}.csv") for name in ("train", "validation"))
    assert len(dev) == 48
    shares = [Counter(row["label"] for row in rows) for rows in (train, dev, rows_of(few))]
    assert shares[0] + shares[1] == shares[2]
    assert abs(shares[1]["entailment"] / 48 - shares[2]["entailment"] / 240) < 1 / 48
    config = read_json(out / "model/config.json")
    assert (config["weight_name"], config["pooler_input"]) == ("equal", "mean")
    assert read_json(out / "model/exit_config.json")["thres_name"] == "optimal_stopping"
    assert re.search(r"With the int8 ONNX file, \d+\.\d% of the dev rows exit", done.out)
    assert read_json(out / "model/eval_results.json")["provenance"].get("file") is None
    assert (out / "model/sweep/explorer.html").exists()
    # Of the model, and of the file.
    (by_model,), (by_file,) = map(evaluated, usage_of(done.out))
    assert by_model["label"] == by_file["label"]
    assert by_model["score"] == pytest.approx(by_file["score"], abs=0.1)
    command = re.search(r"python (examples/onnx_python.py .*)", done.out)[1].split()
    answer = ran(sys.executable, ROOT / command[0], *command[1:3], "Ann asks Ida.", "Ann says yes.")
    assert re.fullmatch(r"(not_)?entailment, after layer \d+\n", answer)


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        ("a,x\nb,x\nc,x\nd,y\n", (), "cannot be split: only one text has the label 'y'"),
        ("a,x\n" * 4 + "a,y\n" * 4, (), "cannot be split: all rows have the same text"),
        ("a,x\nb,y\n" * 4, ("--learning_rat", "1"), "unknown flag --learning_rat"),
        ("a,x\nb,y\n" * 4, ("--set", "exit_thres=2"), "exit_thres"),
        ("a,x\nb,y\n" * 4, ("--set", "self_distillation=-0.5"), "a number from 0 to 1"),
        ("a,x\nb,y\n" * 4, ("--set", "exit_layers=[12]", "self_distillation=1"), "single exit"),
        ("a,x\nb,y\n" * 4, ("--max_drop", "nan"), "--max_drop"),
        ("a,x\nb,y\n" * 4, ("--model_name_or_path", "no/such"), "no/such"),
    ],
)
def test_what_cannot_be_made_is_said_before_anything_is_written(
    rows, more, words, script, tmp_path, monkeypatch
):
    monkeypatch.setattr(make_classifier, "check_packages", lambda: None)
    table = write(tmp_path / "own.csv", "sentence1,label\n" + rows)
    flags = ["--train_file", table, "--model_name_or_path", SAMPLE, "--output_dir", tmp_path / "o"]
    script(make_classifier.main, *flags, *more).refused(words)
    assert not list(tmp_path.glob("o/*"))


def test_keys_are_checked_against_the_configuration_that_is_named(script, tmp_path, monkeypatch):
    """Three layers of the sample's twelve, whose last exit is at the third."""
    monkeypatch.setattr(make_classifier, "check_packages", lambda: None)
    monkeypatch.setattr(steps, "run", lambda *command: sys.exit(7))  # behind the checks
    config = {**read_json(SAMPLE / "config.json"), "num_hidden_layers": 3}
    shallow = write(tmp_path / "three_layers.json", json.dumps(config))
    table = write(
        tmp_path / "own.csv",
        "sentence1,label\n" + "".join(f"{n},{'xy'[n % 2]}\n" for n in range(40)),
    )
    flags = ["--train_file", table, "--model_name_or_path", SAMPLE, "--output_dir", tmp_path / "o"]
    more = ("--config_name", shallow, "--set", "exit_layers=[1,3]")
    assert script(make_classifier.main, *flags, *more).status == 7
    script(make_classifier.main, *flags, *more[2:]).refused("exit_layers")


@pytest.mark.parametrize("separator", [None, ";", "columns"])
def test_no_text_is_on_both_sides_of_the_split_and_no_label_in_the_dev_rows_alone(
    separator, script, tmp_path, monkeypatch
):
    monkeypatch.setattr(make_classifier, "check_packages", lambda: None)
    monkeypatch.setattr(steps, "run", lambda *command: sys.exit(7))  # behind the split
    labels = ["x;y", "y"] if separator else ["x", "y"]
    texts = [(f"text {n % 30}", labels[n % 2]) for n in range(60)]
    texts += [(f"rare {n}", f"only {n}" if separator else "z") for n in range(20)]
    lines = [",".join(row) for row in texts]
    table = write(tmp_path / "own.csv", "\n".join(["sentence1,label", *lines]))
    out = tmp_path / "o"
    flags = ["--train_file", table, "--model_name_or_path", SAMPLE, "--output_dir", out]
    if separator == "columns":
        names = ["x", "y", *(f"only {n}" for n in range(20))]
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", *names])
            for text, label in texts:
                writer.writerow([text, *(int(name in label.split(";")) for name in names)])
        flags += ["--label_column_name", ",".join(names)]
    elif separator:
        flags += ["--label_separator", separator]
    assert script(make_classifier.main, *flags).status == 7
    train, dev = (rows_of(out / f"data/{name}.csv") for name in ("train", "validation"))
    assert dev
    assert len(train) + len(dev) == 80
    assert not {row["sentence1"] for row in train} & {row["sentence1"] for row in dev}

    def labels_in(rows) -> set[str]:
        if separator == "columns":
            return {name for row in rows for name in names if row[name] == "1"}
        return {label for row in rows for label in row["label"].split(separator)}

    assert labels_in(dev) <= labels_in(train)


@pytest.fixture
def make_general(script, tmp_path):
    """`make_general(model_type)`: a classifier from an encoder of this type, and from a table.

    An MPNet's exits learn from the last one. The layers of the others are transformers' own.
    """

    def make(model_type):
        keys = []
        if model_type == "mpnet":
            weights = save(tiny_encoder("mpnet", num_hidden_layers=2), tmp_path / model_type)
            keys = ["--set", "self_distillation=0.5"]
        else:
            twin = tiny_classifier(model_type, num_hidden_layers=2, num_labels=2)
            weights = save_with_tokenizer(twin, tmp_path / model_type)
        ends = {"red": "it is red", "wet": "it is wet"}
        rows = [f"{sentence(n, 3)} {ends[label]},{label}" for n in range(60) for label in ends]
        table = write(tmp_path / "own.csv", "\n".join(["sentence1,label", *rows]))
        flags = ["--train_file", table, "--model_name_or_path", weights]
        flags += ["--output_dir", tmp_path / "out", "--max_seq_length", 20]
        training = ("--learning_rate", 2e-3, "--num_train_epochs", 6)
        return script(make_classifier.main, *flags, *training, *keys).done()

    return make


def usage_of(output: str) -> list[str]:
    """The lines of Python that the command prints."""
    lines = re.findall(
        r"    (import elbert\n)    (classify = .*\n)    print\((classify\(.*)\)\n", output
    )
    return ["".join(found) for found in lines]


@pytest.mark.slow
@pytest.mark.onnx
@pytest.mark.parametrize("model_type", ["deberta-v2", "mpnet"])
def test_other_encoders_become_a_file_as_well(model_type, make_general):
    pytest.importorskip("onnxruntime")
    done = make_general(model_type)
    assert re.search(r"With the int8 ONNX file, \d+\.\d% of the dev rows get the same", done.out)
    (by_model,), (by_file,) = map(evaluated, usage_of(done.out))
    assert by_model["label"] == by_file["label"]
    assert by_model["score"] == pytest.approx(by_file["score"], abs=0.1)


@pytest.mark.slow
def test_layers_that_torch_cannot_export_become_a_model_with_its_report(
    make_general, tmp_path, monkeypatch
):
    def call_all_but_the_export(name, flags):
        if name == "export_onnx.py":
            raise UserError(f"{name} ended with status 2")
        call(name, flags)

    monkeypatch.setattr(make_classifier, "check_packages", lambda: None)
    monkeypatch.setattr(steps, "call", call_all_but_the_export)
    done = make_general("modernbert")
    assert "There is no ONNX file" in done.out
    assert "int8" not in done.out.split("There is no ONNX file")[1]
    assert (tmp_path / "out/model/sweep/explorer.html").exists()
    (usage,) = usage_of(done.out)
    assert evaluated(usage)[0]["label"] in ("red", "wet")


def test_a_package_that_the_file_needs_is_asked_for_before_anything_is_trained(
    script, tmp_path, monkeypatch
):
    monkeypatch.setattr(project, "find_spec", lambda name: None)
    table = write(tmp_path / "own.csv", "sentence1,label\n" + "a,x\nb,y\n" * 10)
    flags = ["--train_file", table, "--model_name_or_path", SAMPLE, "--output_dir", tmp_path / "o"]
    script(make_classifier.main, *flags).refused("onnx_ir", "pip install -r requirements/onnx.txt")
    assert not (tmp_path / "o/model").exists()


def test_a_refused_command_has_changed_nothing(script, tmp_path, monkeypatch):
    """Of a table that it would write over, another table's model, and a folder that is in use."""
    monkeypatch.setattr(make_classifier, "check_packages", lambda: None)
    out = tmp_path / "out"
    rows = "sentence1,label\n" + "".join(f"text {n},{'xy'[n % 2]}\n" for n in range(40))
    table = write(tmp_path / "own.csv", rows)
    (out / "data").mkdir(parents=True)
    (out / "model").mkdir()
    write(out / "model/config.json", "{}")
    before = write(out / "data/train.csv", rows), write(out / "data/validation.csv", "other rows")
    contents = [path.read_bytes() for path in before]

    def run(path, *more):
        flags = ["--train_file", path, "--model_name_or_path", SAMPLE, "--output_dir", out]
        return script(make_classifier.main, *flags, *more)

    run(before[0]).refused("data/train.csv is one of the files that", "another --output_dir")
    run(table).refused("was trained on other rows", "own.csv", "--overwrite_output_dir")
    with locked_for_training(out):
        run(table, "--overwrite_output_dir").refused("another run is training a model in it")
    assert [path.read_bytes() for path in before] == contents
