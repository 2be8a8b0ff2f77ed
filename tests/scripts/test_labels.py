"""Labels go by name, wherever two sets of them meet."""

import json
from pathlib import Path

import pytest
import torch

import classify
import run_glue
import sweep_exits
from elbert import Classifier, ElbertConfig, UserError, load_config
from evaluation.modes import MODES
from glue.custom import custom_task
from glue.splits import read_examples
from glue.tasks import TASKS, Task, get_task
from modeling.exit_settings import NO_KEYS
from modeling.loading.weights import load_model
from runs.job import load_for_task
from runs.settings import ModelSettings
from tests.berts import tiny_encoder
from tests.conftest import TINY, contents, edit_json, random_ids, write
from training.starting_model import StartingModel
from training.teacher import Teacher

NLI = ["entailment", "neutral", "contradiction"]  # as most heads on the hub have them
# A model's labels, a task's, and the model's number of each of the task's; or words of the error.
CASES = {
    "the same": (["no", "yes"], ["no", "yes"], [0, 1]),
    "another order": (["positive", "negative"], ["negative", "positive"], [1, 0]),
    "NLI": (NLI, sorted(NLI), [2, 0, 1]),
    "another case": (["YES", "No"], ["no", "Yes"], [1, 0]),
    "case alone tells them apart": (["us", "US", "them"], ["US", "them", "us"], [1, 2, 0]),
    "accents": (["caf\u00e9", "bar"], ["bar", "cafe\u0301"], [1, 0]),
    "numbers": (["2.0", "1.0"], ["1", "2"], [1, 0]),
    "no names": (["LABEL_0", "LABEL_1"], ["0", "1"], [0, 1]),
    "no names, turned": (["LABEL_1", "LABEL_0"], ["0", "1"], [1, 0]),
    "some in common": (["yes", "no", "maybe"], ["no", "perhaps", "yes"], "perhaps has no count"),
    "one in common": (
        ["entailment", "contradiction"],
        ["entailment", "no"],
        "no has no counterpart",
    ),
    "two candidates": (["us", "US"], ["Us", "uS"], "differ only by case"),
    "twice the same": (["Yes", "no"], ["YES", "yes"], "differ only by case"),
}
STRANGERS = {
    "other words": (["ham", "spam"], ["negative", "positive"]),
    "no names for words": (["LABEL_0", "LABEL_1"], ["negative", "positive"]),
    "no names for other numbers": (["LABEL_0", "LABEL_1"], ["1", "2"]),
}


def numbered(labels: list[str]) -> dict[int, str]:
    return dict(enumerate(labels))


def bias_of(model) -> list[int]:
    """Of a head's classes; `save_model` numbers them."""
    biases = [
        x for name, x in model.named_parameters() if "classifier" in name and name.endswith("bias")
    ]
    return biases[-1].int().tolist()


def save_model(model, folder: Path) -> Path:
    """Save a classifier whose head answers 0, 1, … to all texts."""
    with torch.no_grad():
        *_, weight, bias = (x for name, x in model.named_parameters() if "classifier" in name)
        weight.zero_()
        bias.copy_(torch.arange(len(bias)))
    model.save_pretrained(folder)
    return folder


def own_head(mode: str):
    """A checkpoint of ours, and a configuration of other labels."""

    def door(model_labels, labels, folder, in_order):
        config_class, model_class = MODES[mode].config_class, MODES[mode].model_class
        save_model(model_class(config_class(**TINY, id2label=numbered(model_labels))), folder)
        config = config_class(**TINY, id2label=numbered(labels))
        model, _ = load_model(model_class, folder, config, labels_in_order=in_order)
        return bias_of(model)

    return door


def hf_head(model_labels, labels, folder, in_order):
    """A fine-tuned BERT, and a table: what a training starts from."""
    twin = tiny_encoder("bert", "ForSequenceClassification", id2label=numbered(model_labels))
    settings = ModelSettings(model_name_or_path=str(save_model(twin, folder)))
    task = Task(name="custom", folder="", submission="", labels=tuple(labels))
    start = StartingModel.of(settings, MODES["elbert"], NO_KEYS, in_order)
    config = start.make_config(task)
    assert config.id2label == numbered(labels)
    model, _ = start.make_model(config, task)
    return bias_of(model)


def teacher(model_labels, labels, folder, in_order):
    """A teacher and its pupil."""
    task = Task(name="custom", folder="", submission="", labels=tuple(labels))
    return Teacher(folder, task, 32, in_order).label_order(model_labels)


def file(model_labels, labels, folder, in_order):
    """A model, and a file that it is evaluated on, with each of its labels once."""
    rows = "".join(f"a,{label}\n" for label in labels)
    path = write(folder / "dev.csv", f"sentence1,label\n{rows}")
    task = custom_task({"dev": path}, labels=model_labels, labels_in_order=in_order)
    return [example.label for example in read_examples(task, "", "dev")]


DOORS = {
    "ELBERT": own_head("elbert"),
    "PonderNet": own_head("ponder_albert"),
    "Adaptive Depth": own_head("albert_act"),
    "a BERT": hf_head,
    "a teacher": teacher,
    "a file": file,
}


@pytest.mark.parametrize("door", DOORS)
def test_labels_are_matched_by_name_at_every_door(door, tmp_path):
    for name, (model_labels, labels, expected) in CASES.items():
        folder = tmp_path / name
        folder.mkdir()
        if isinstance(expected, list):
            assert DOORS[door](model_labels, labels, folder, False) == expected, name
            continue
        for in_order in (False, True):
            with pytest.raises(UserError) as caught:
                DOORS[door](model_labels, labels, folder, in_order)
            for word in (*model_labels, *labels, expected):
                assert word in str(caught.value), name
    for name, (model_labels, labels) in STRANGERS.items():
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(UserError, match=r"no name in common.* --labels_in_order"):
            DOORS[door](model_labels, labels, folder, False)
        assert DOORS[door](model_labels, labels, folder, True) == [0, 1], name


# GLUE's own order.


def glue_head(task: str, labels: list[str], folder: Path, **keys) -> list[int]:
    """The model's number of each of the task's labels, as an evaluation has it."""
    config_class, model_class = MODES["elbert"].config_class, MODES["elbert"].model_class
    save_model(model_class(config_class(**TINY, id2label=numbered(labels))), folder)
    edit_json(folder / "config.json", **keys)
    model = load_for_task(folder, NO_KEYS, get_task(task), False)
    with torch.no_grad():
        assert model.eval()(random_ids(1, 5)).logits.tolist() == [bias_of(model)]
    return bias_of(model)


@pytest.mark.parametrize(
    ("task", "labels", "expected"),
    [
        ("rte", ["not_entailment", "entailment"], [1, 0]),
        ("qnli", ["ENTAILMENT", "NOT_ENTAILMENT"], [0, 1]),
        ("mnli", NLI, [2, 0, 1]),
        ("sst-2", ["POSITIVE", "NEGATIVE"], [1, 0]),  # whose files have 0 and 1
        ("mrpc", ["not_equivalent", "equivalent"], [0, 1]),
        ("cola", ["LABEL_0", "LABEL_1"], [0, 1]),
        ("mnli", ["LABEL_0", "LABEL_1", "LABEL_2"], [0, 1, 2]),  # as ELBERT's published code saves
    ],
)
def test_a_model_is_evaluated_in_glues_own_order(task, labels, expected, tmp_path):
    assert glue_head(task, labels, tmp_path) == expected
    assert all(len(x.meanings) in (0, len(x.labels)) for x in TASKS.values())


def test_other_labels_than_glues_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"entailment, no;.*rte has.*counterpart"):
        glue_head("rte", ["entailment", "no"], tmp_path / "partly")
    with pytest.raises(UserError, match=r"ham, spam;.*--labels_in_order"):
        glue_head("rte", ["ham", "spam"], tmp_path / "strangers")
    turned = ["not_entailment", "entailment"]
    with pytest.raises(UserError, match="since window_score depends on it"):
        glue_head("rte", turned, tmp_path / "class 0", window_score="class0")


def test_label2id_alone_names_the_classes(tmp_path):
    save_model(MODES["elbert"].model_class(ElbertConfig(**TINY, num_labels=2)), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    values.pop("id2label", None)
    values["label2id"] = {"spam": 1, "ham": 0}
    (tmp_path / "config.json").write_text(json.dumps(values))
    model, _ = load_model(MODES["elbert"].model_class, tmp_path)
    assert model.config.id2label == {0: "ham", 1: "spam"}


def test_labels_in_another_order_than_the_trainings_are_an_error(trained, glue, tmp_path, script):
    """The weights have them in the training's order: each answer would get the other's name."""
    first, second = load_config(trained).id2label.values()
    rows = f"a dog,a cat,{first}\na man,a dog,{second}\n"
    dev = write(tmp_path / "dev.csv", f"sentence1,sentence2,label\n{rows}")
    commands = [
        (run_glue.main, "--do_eval", "--output_dir", trained),
        (run_glue.main, "--do_eval", "--output_dir", trained, "--validation_file", dev),
        (sweep_exits.main, "--model_dir", trained),
        (
            classify.main,
            *("--model_dir", trained, "--input_file", dev),
            *("--output_file", tmp_path / "b.csv", "--prefix", "my_"),
        ),
    ]
    before = contents(trained)
    edit_json(
        trained / "config.json",
        id2label={"0": second, "1": first},
        label2id={second: 0, first: 1},
    )
    changed = contents(trained)
    for command in commands:
        script(*command).refused("config.json: id2label", f"{first}, {second}, in this order")
    with pytest.raises(UserError, match=rf"{first}, {second}, in this order"):
        Classifier(trained)
    with pytest.raises(UserError, match=rf"{first}, {second}, in this order"):
        load_model(MODES["elbert"].model_class, trained)
    assert contents(trained) == changed
    (trained / "config.json").write_bytes(before["config.json"])
    script(*commands[-1]).done()


# Older trainings did not write their labels: what a file tells of their order, and the task.
@pytest.mark.parametrize(
    ("file", "about", "task", "labels"),
    [
        ("training.json", {"task_name": "RTE"}, "rte", ["entailment", "not_entailment"]),
        ("training_state.json", {"task_name": "MNLI"}, "mnli", sorted(NLI)),
        ("training.json", {"label_column_name": "odd, even"}, "custom", ["odd", "even"]),
        ("eval_results.json", {"good": {}, "bad": {}}, "custom", ["good", "bad"]),
    ],
)
def test_the_order_of_an_older_models_labels_is_known(file, about, task, labels, tmp_path):
    config_class, model_class = MODES["elbert"].config_class, MODES["elbert"].model_class
    config = config_class(**TINY, id2label=numbered(labels), finetuning_task=task)
    save_model(model_class(config), tmp_path)
    is_result = file == "eval_results.json"
    content = {"classes": about} if is_result else {"provenance": {"flags": about}}
    (tmp_path / file).write_text(json.dumps(content))
    if is_result:
        flags = {"provenance": {"flags": {"train_file": "reviews.csv"}}}
        (tmp_path / "training.json").write_text(json.dumps(flags))
    assert [*load_config(tmp_path).id2label.values()] == labels
    turned = labels[::-1]
    edit_json(tmp_path / "config.json", id2label=numbered(turned), label2id=None)
    with pytest.raises(UserError, match=f"trained with {', '.join(labels)}, in this order"):
        load_config(tmp_path)
    renamed = [f"class {label}" for label in turned]
    edit_json(tmp_path / "config.json", id2label=numbered(renamed), label2id=None)
    assert [*load_config(tmp_path).id2label.values()] == renamed


@pytest.mark.parametrize("label", ["a\x1b[31m", "a\tb", "a\u2028b", "a\x85b"])
def test_a_label_with_a_control_character_is_an_error(label, trained, tmp_path, script):
    edit_json(trained / "config.json", id2label={"0": label, "1": "b"}, label2id={label: 0, "b": 1})
    with pytest.raises(UserError, match=r"config\.json: the label '") as caught:
        Classifier(trained)
    assert caught.value.args[0].isprintable()
    rows = [{"sentence1": "a dog", "label": name} for name in (label, "b")]
    table = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--train_file", table, "--model_name_or_path", trained, "--output_dir", tmp_path / "o")
    script(run_glue.main, "--model_type", "elbert", "--do_train", *flags).refused(
        "a.jsonl: the label"
    )


def test_a_training_says_it_before_it_begins(glue, tmp_path, trained):
    """And one file spells a label in one way; another's case may be another."""
    table = write(tmp_path / "train.csv", "sentence1,label\n" + "a dog,Yes\na man,No\n" * 4)
    flags = ("--do_train", "--do_eval", "--max_steps", 1, "--train_file", table)
    flags = (*flags, "--validation_file")
    lower = write(tmp_path / "dev.csv", "sentence1,label\na dog,yes\na man,no\n")
    edit_json(trained / "config.json", finetuning_task="custom")
    before = contents(tmp_path)
    refusal = glue(tmp_path / "new", *flags, lower, weights=trained)
    refusal.refused("entailment, not_entailment", "No, Yes", "--labels_in_order")
    both = write(tmp_path / "both.csv", "sentence1,label\na dog,yes\na man,Yes\n")
    glue(tmp_path / "new", *flags, both).refused("both.csv, line 3", "'Yes' and 'yes'")
    assert before.items() <= contents(tmp_path).items()
    glue(tmp_path / "new", *flags, lower, "--labels_in_order", weights=trained).done()
    recorded = json.loads((tmp_path / "new/training.json").read_text())["provenance"]["flags"]
    assert recorded["task_name"] is None  # RTE, which the command names: these rows are not its
