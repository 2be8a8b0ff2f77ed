"""share_layers.py from its flags to its files, and what goes on from there."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AlbertModel, BertModel

import run_pretraining
import share_layers
from modeling import load_act, load_ponder, load_pretrained, load_tokenizer
from modeling.layer_sharing import Teacher
from tests.berts import (
    assert_same_states,
    padded_ids,
    plain_text,
    save,
    tiny_bert,
)
from tests.berts import sharing_flags as flags
from tests.forks import assert_same_weights, run, run_together


@pytest.fixture(scope="session")
def bert_dir(tmp_path_factory) -> Path:
    return save(tiny_bert(), tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    return plain_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory, bert_dir, text) -> Path:
    """A student of eight steps, made in a process of its own; its log beside it."""
    folder = tmp_path_factory.mktemp("trained")
    command = flags(bert_dir, text, folder / "out", "--do_eval", "--max_steps", 40)
    assert run(command, main=share_layers.main, log=folder / "log") == 0
    return folder / "out"


def logged_means(log: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in re.findall(r"{.*loss.*}", log)]


def test_training_follows_better_and_reports_every_pass(trained, bert_dir):
    log = (trained.parent / "log").read_text()
    logged = logged_means(log)
    assert logged[-1]["loss"] < 0.8 * logged[0]["loss"]
    report = json.loads((trained / "eval_results.json").read_text())
    assert report["followed_layers"] == [1, 2, 3]
    second = report["second_sentence"]
    for number, share in enumerate(report["passes"], 1):
        assert 0 < share < logged[0][f"pass/{number}"]
        assert f"| {number} | {number} | {share:.4f} | {second[number - 1]:.4f} |" in log
    assert report["embeddings"] < 1e-9


def test_the_report_is_of_hfs_states_on_text_that_was_not_trained_on(
    trained, bert_dir, tmp_path, script
):
    """By hand from HF's models, a text at a time; two processes find the same of one text."""
    texts = [("it rains again today",), ("a man eats", "nobody plays the piano in the garden")]
    report = {}
    for count, some in ((2, texts), (1, texts[:1])):
        path = tmp_path / f"{count}.txt"
        path.write_text("\n\n".join("\n".join(sentences) for sentences in some))
        # With this seed the two sentences stay in their order.
        where = flags(bert_dir, path, trained, "--max_seq_length", 32, "--seed", 2)
        where.remove("--do_train")
        script(share_layers.main, *where, "--do_eval").done()
        report[count] = json.loads((trained / "eval_results.json").read_text())
    assert report[1]["second_sentence"] == [None] * 3
    status = run_together(2, [*where, "--do_eval"], tmp_path / "log", main=share_layers.main)
    assert status == [0, 0]
    together = json.loads((trained / "eval_results.json").read_text())
    assert together["passes"] == pytest.approx(report[1]["passes"], rel=1e-5)

    tokenizer = load_tokenizer(bert_dir)
    teacher, student = BertModel.from_pretrained(bert_dir), AlbertModel.from_pretrained(trained)

    def states(model, *sentences):
        inputs = tokenizer(*sentences, return_tensors="pt")
        with torch.no_grad():
            out = model.eval()(**inputs, output_hidden_states=True)
        return torch.stack(out.hidden_states)[1:, 0].double()  # (passes, tokens, hidden)

    def of_both(model):
        return torch.cat([states(model, *sentences) for sentences in texts], 1)

    found, wanted = of_both(student), of_both(teacher)
    assert report[2]["tokens"] == found.shape[1]
    left = (found - wanted).square().sum((1, 2))
    spread = (wanted - wanted.mean(1, keepdim=True)).square().sum((1, 2))
    assert report[2]["passes"] == pytest.approx((left / spread).tolist(), rel=1e-4)
    changes = []
    for model in (student, teacher):
        alone = states(model, texts[1][0])
        changes.append(states(model, *texts[1])[:, : alone.shape[1]] - alone)
    missed = (changes[0] - changes[1]).square().sum((1, 2)) / changes[1].square().sum((1, 2))
    assert report[2]["second_sentence"] == pytest.approx(missed.tolist(), rel=1e-4)


def test_the_student_is_an_hf_albert_and_every_modes_start(trained, bert_dir):
    student, told = AlbertModel.from_pretrained(trained, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    inputs = padded_ids()
    wanted = student.eval()(**inputs).last_hidden_state
    assert_same_states(Teacher(trained).states(inputs)[-1:], [wanted], inputs)
    for load, new in (
        (load_pretrained, ("exit",)),
        (load_ponder, ("classifier", "ponder")),
        (load_act, ("classifier", ".act.")),
    ):
        _, report = load(trained)
        assert all(any(part in name for part in new) for name in report.initialised)
    assert len(load_tokenizer(trained)) == len(load_tokenizer(bert_dir))


@pytest.mark.parametrize("kind", ["albert", "albert_act"])
def test_pretraining_starts_from_the_student(kind, trained, text, tmp_path, script):
    """With a learning rate of 0, its encoder comes out of run_pretraining.py as it went in."""
    out = tmp_path / "out"
    script(
        run_pretraining.main,
        *("--model_type", kind, "--model_name_or_path", trained, "--do_train", "--train_files"),
        *(text, "--output_dir", out, "--max_steps", 2, "--max_seq_length", 16, "--no_cuda"),
        *("--long_fraction", 0, "--per_gpu_train_batch_size", 4, "--learning_rate", 0),
        *("--gradient_accumulation_steps", 1, "--optimizer", "adamw"),
    ).done()
    load = load_pretrained if kind == "albert" else load_act
    (before, _), (after, report) = load(trained), load(out)
    kept = [name for name in report.loaded if ".act." not in name]
    assert len(kept) > 20
    old, new = before.state_dict(), after.state_dict()
    assert all(torch.equal(old[name], new[name]) for name in kept)


@pytest.mark.parametrize("passes", [3, 5])
def test_a_student_starts_with_the_weights_of_an_earlier_one(
    passes, trained, bert_dir, text, tmp_path, script
):
    """With a learning rate of 0, they come out as they went in."""
    more = ("--initial_student", trained, "--num_hidden_layers", passes, "--learning_rate", 0)
    command = flags(bert_dir, text, tmp_path / "out", *more, "--max_steps", 1)
    script(share_layers.main, *command).done()
    assert AlbertModel.from_pretrained(tmp_path / "out").config.num_hidden_layers == passes
    assert_same_weights(trained, tmp_path / "out")


@pytest.fixture(scope="session")
def wide(tmp_path_factory, trained, bert_dir, text) -> Path:
    """`trained` with a feed-forward part twice as wide, and not trained since."""
    out = tmp_path_factory.mktemp("wide")
    more = ("--initial_student", trained, "--intermediate_size", 96, "--learning_rate", 0)
    command = flags(bert_dir, text, out, *more, "--max_steps", 1)
    assert run(command, main=share_layers.main) == 0
    return out


def test_a_student_that_is_widened_answers_as_before(trained, wide):
    narrow, other = (AlbertModel.from_pretrained(path).eval() for path in (trained, wide))
    assert other.config.intermediate_size == 2 * narrow.config.intermediate_size
    inputs = padded_ids()
    states = [m(**inputs, output_hidden_states=True).hidden_states for m in (narrow, other)]
    assert_same_states(*states, inputs)


# Errors.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--intermediate_size 50", ["--intermediate_size 50", "48", "144"]),
        ("--intermediate_size 192", ["--intermediate_size 192", "48", "144"]),
        ("--initial_layer 4", ["--initial_layer 4", "1 to 3"]),
        ("--max_seq_length 41", ["--max_seq_length 41", "40"]),
        ("--train_files nowhere.txt", ["nowhere.txt"]),
        ("--num_hidden_layers 1 --last_pass_weight 0", ["--last_pass_weight 0"]),
        ("--initial_student BERT", ["--initial_student", "one shared layer", "share_layers.py"]),
        ("--initial_student WIDE", ["--initial_student", "96 units", "--intermediate_size 96"]),
        ("--initial_student WIDE --initial_layer 2", ["--initial_layer 2", "one of"]),
    ],
)
def test_errors_say_what_is_allowed(more, words, wide, bert_dir, text, tmp_path, script):
    places = {"BERT": bert_dir, "WIDE": wide}
    given = [places.get(word, word) for word in more.split()]
    script(share_layers.main, *flags(bert_dir, text, tmp_path / "out", *given)).refused(*words)


def test_evaluation_asks_for_the_students_own_teacher(trained, text, tmp_path, script):
    other = save(tiny_bert(hidden_size=16), tmp_path / "other")
    command = flags(other, text, trained, "--do_eval")
    command.remove("--do_train")
    script(share_layers.main, *command).refused("hidden_size is 32")
