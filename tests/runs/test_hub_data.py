"""Data sets of the `datasets` library, from local folders, and files at hf:// addresses."""

import csv

import pytest

import run_glue
from glue.custom import custom_task
from glue.splits import read_examples
from modeling.errors import UserError
from runs import hub_data
from runs.hub_data import fetch_data
from runs.settings import DataSettings
from tests.commands import report_of
from tests.conftest import sentence, write

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def exported(tmp_path):
    """A folder with a data set's splits, as `datasets` reads it: label numbers with names."""
    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no way", "yes"]),
            "idx": datasets.Value("int32"),
        }
    )
    folder = tmp_path / "pairs"
    for name, count in (("train", 24), ("validation", 10), ("test", 4)):
        rows = {
            "premise": [f'{sentence(i)}, "{i}"\n' for i in range(count)],
            "hypothesis": [sentence(i + 1) for i in range(count)],
            "label": [-1 if name == "test" else i % 2 for i in range(count)],
            "idx": list(range(count)),
        }
        folder.mkdir(exist_ok=True)
        split = datasets.Dataset.from_dict(rows, features=features)
        split.to_parquet(folder / f"{name}-00000-of-00001.parquet")
    return folder


def test_a_data_set_becomes_files_with_its_labels_by_name(exported):
    data = fetch_data(DataSettings(dataset_name=str(exported)))
    assert data.text_column_names == "premise,hypothesis"
    task = custom_task(
        {"train": data.train_file, "dev": data.validation_file, "test": data.test_file},
        text_columns=data.text_column_names,
    )
    assert task.labels == ("no way", "yes")
    examples = read_examples(task, "", "train")
    assert [example.label for example in examples] == [i % 2 for i in range(24)]
    assert examples[3].text_a == f'{sentence(3)}, "3"\n'
    assert [example.label for example in read_examples(task, "", "test")] == [None] * 4
    again = fetch_data(DataSettings(dataset_name=str(exported)))
    assert again == data


def test_a_file_that_is_given_takes_the_place_of_its_split(exported, tmp_path):
    own = write(tmp_path / "own.csv", "premise,hypothesis,label\na,b,yes\n")
    split = fetch_data(DataSettings(dataset_name=str(exported)))
    data = fetch_data(DataSettings(dataset_name=str(exported), validation_file=str(own)))
    assert data.validation_file == str(own)
    assert data.train_file == split.train_file


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_tables_that_the_library_exported_are_read(kind, exported, tmp_path):
    """Label numbers are the classes 0 and 1; −1, by which a test set hides its labels, is none.

    A model with names takes the numbers in its order where --labels_in_order says so.
    """
    files = {}
    loaded = datasets.load_dataset(str(exported))
    for split, name in (("train", "train"), ("dev", "validation"), ("test", "test")):
        files[split] = tmp_path / f"{split}.{kind}"
        getattr(loaded[name], f"to_{kind}")(files[split])
    task = custom_task(files, text_columns="premise,hypothesis")
    assert task.labels == ("0", "1")
    assert [x.label for x in read_examples(task, "", "train")] == [i % 2 for i in range(24)]
    assert [x.label for x in read_examples(task, "", "test")] == [None] * 4
    names = {"labels": ("no way", "yes"), "text_columns": "premise,hypothesis"}
    with pytest.raises(UserError, match="--labels_in_order"):
        custom_task({"dev": files["dev"]}, **names)
    named = custom_task({"dev": files["dev"]}, labels_in_order=True, **names)
    assert [x.label for x in read_examples(named, "", "dev")] == [i % 2 for i in range(10)]


@pytest.mark.slow
def test_a_data_set_trains_and_its_folder_evaluates_alone(exported, albert_dir, script, tmp_path):
    out = tmp_path / "out"
    flags = ("--model_type", "elbert", "--dataset_name", exported, "--output_dir", out)
    sizes = ("--max_seq_length", 32, "--num_train_epochs", 1, "--model_name_or_path", albert_dir)
    script(run_glue.main, *flags, *sizes, "--do_train", "--no_cuda").done()
    script(run_glue.main, "--output_dir", out, "--do_eval", "--do_predict", "--no_cuda").done()
    assert report_of(out)["examples"] == 10
    # Another data set counts, and not the files of the training.
    other = tmp_path / "other"
    other.mkdir()
    datasets.load_dataset(str(exported))["train"].to_parquet(other / "validation.parquet")
    script(
        run_glue.main, "--output_dir", out, "--do_eval", "--dataset_name", other, "--no_cuda"
    ).done()
    assert report_of(out)["examples"] == 24
    with (out / "predictions.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert {row["prediction"] for row in rows} <= {"no way", "yes"}


def test_what_cannot_be_fetched_is_said(exported, tmp_path):
    for settings, words in (
        ({"dataset_name": str(tmp_path / "nothing")}, "nothing"),
        ({"dataset_config_name": "sst2"}, "give --dataset_name"),
        ({"train_file": "hf://datasets/only"}, "hf://datasets/OWNER/NAME/FILE"),
    ):
        with pytest.raises(UserError, match=words):
            fetch_data(DataSettings(**settings))
    odd = tmp_path / "odd"
    odd.mkdir()
    write(odd / "train.csv", "words,label\na,x\n")
    with pytest.raises(UserError, match=r"which columns are texts\?.*words, label"):
        fetch_data(DataSettings(dataset_name=str(odd)))


def test_an_address_is_fetched_with_its_revision(tmp_path, monkeypatch):
    """By huggingface_hub's own function, which asks no network here."""
    asked = []

    def download(repository, name, **options):
        asked.append((repository, name, options))
        return str(tmp_path / name)

    monkeypatch.setattr(hub_data, "hf_hub_download", download)
    data = fetch_data(
        DataSettings(
            train_file="hf://datasets/somebody/reviews@v2/data/train.csv", validation_file="dev.csv"
        )
    )
    assert asked == [
        ("somebody/reviews", "data/train.csv", {"repo_type": "dataset", "revision": "v2"})
    ]
    assert data.train_file == str(tmp_path / "data/train.csv")
    assert data.validation_file == "dev.csv"


def test_lists_of_classes_are_lists_of_names(tmp_path):
    """As for one class, −1 is none, and null is a label that is missing."""
    classes = datasets.Sequence(datasets.ClassLabel(names=["neg", "odd", "pos"]))
    rows = {"text": list("abcd"), "label": [[0, 1], [2, -1], None, [-1]]}
    features = datasets.Features({"text": datasets.Value("string"), "label": classes})
    split = datasets.Dataset.from_dict(rows, features=features)
    named = hub_data.with_label_names(split)["label"]
    assert list(named) == [["neg", "odd"], ["pos"], None, []]


def test_files_of_other_columns_and_loading_scripts_are_errors_of_one_line(tmp_path):
    (tmp_path / "columns").mkdir()
    write(tmp_path / "columns/a.csv", "text,label\nx,y\n")
    write(tmp_path / "columns/b.csv", "other,third\nx,y\n")
    (tmp_path / "script").mkdir()
    write(tmp_path / "script/script.py", "raise ValueError\n")
    (tmp_path / "splits").mkdir()
    write(tmp_path / "splits/train.csv", "text,label\nx,y\n")
    write(tmp_path / "splits/validation.csv", "text,label,annotator\nx,y,7\n")
    for name, words in (
        ("columns", "other"),
        ("splits", "annotator"),
        ("script", "scripts are no longer supported"),
    ):
        with pytest.raises(UserError, match=words):
            fetch_data(DataSettings(dataset_name=str(tmp_path / name)))
