"""A teacher: the loss by hand, its answers as it gives them by itself, and what is refused."""

import json
from math import log

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import run_glue
from elbert import ElbertConfig, UserError
from glue.splits import read_examples
from glue.tasks import get_task
from modeling.losses import distillation_loss
from tests.berts import save, tiny_encoder
from tests.commands import flags, refused
from tests.conftest import RTE_LABELS, edit_json, tiny_model, write_sts_b
from training.teacher import Teacher

NAMES = dict(enumerate(reversed(RTE_LABELS)))  # a teacher's: the task's the other way round


def test_the_loss_by_hand():
    """Softened by T = 2 the exit says (1/4, 3/4) and the teacher (1/2, 1/2): T²·KL = 2 ln 4/3."""
    logits, teacher = torch.tensor([[0, 2 * log(3)]]).expand(2, 2), torch.zeros(2, 2)
    config, kl = ElbertConfig(teacher_share=0.25, teacher_temperature=2.0), 2 * log(4 / 3)
    found = distillation_loss(logits, torch.tensor([1, -100]), teacher, config)
    labelled = 0.75 * -log(0.9) + 0.25 * kl
    assert found.item() == pytest.approx((labelled + kl) / 2, rel=1e-6)
    values, labels = (
        torch.tensor([[3.0], [3.0]], requires_grad=True),
        torch.tensor([1.0, torch.nan]),
    )
    found = distillation_loss(values, labels, torch.tensor([[2.0], [1.0]]), config)
    assert found.item() == pytest.approx(((0.75 * 4 + 0.25 * 1) + 4) / 2)
    found.backward()  # d/dx of (x − 1)², (x − 2)² and, alone, (x − 1)²
    assert values.grad.flatten().tolist() == pytest.approx([(0.75 * 4 + 0.25 * 2) / 2, 4 / 2])


@pytest.mark.parametrize("weights", ["equal", "dyn"])
def test_every_exit_learns_from_the_teacher_and_unlabelled_examples_only_so(weights):
    model = tiny_model(weight_name=weights, num_exit_layers=4).train()
    ids, teacher = torch.arange(10, 26).view(4, 4), torch.randn(4, 2)
    out = model(ids, labels=torch.full((4,), -100), teacher_logits=teacher)
    out.loss.backward()
    for exit_ in model.exit_heads():
        assert exit_.classifier.weight.grad.abs().max() > 0
    labels = torch.tensor([0, 1, 1, -100])
    out = model(ids, labels=labels, teacher_logits=teacher)
    share = 1 if weights == "equal" else model.exit_weights.sigmoid()
    losses = torch.stack(
        [distillation_loss(x, labels, teacher, model.config) for x in out.all_logits]
    )
    expected = (share * losses[:-1]).sum() + (4 - (losses[:-1] * 0 + share).sum()) * losses[-1]
    torch.testing.assert_close(out.loss, expected)


@pytest.fixture
def answers(rte, monkeypatch):
    """`answers(folder)`: of a teacher, on RTE's dev set; `computed` says how often."""
    examples, task = read_examples(get_task("rte"), rte, "dev"), get_task("rte")
    computed, compute = [], Teacher.compute

    def counted(*given) -> np.ndarray:
        computed.append(given)
        return compute(*given)

    def run(folder, examples=examples) -> np.ndarray:
        return Teacher(folder, task, 32).answers(examples, Accelerator(cpu=True))

    monkeypatch.setattr(Teacher, "compute", counted)
    run.computed, run.examples = computed, examples
    return run


@pytest.fixture
def roberta(tmp_path):
    """A fine-tuned RoBERTa of HF's, with letters for pieces and RTE's labels in another order."""
    model = tiny_encoder("roberta", "ForSequenceClassification", num_labels=2, id2label=NAMES)
    return save(model, tmp_path / "roberta")


def test_a_teacher_of_another_family_answers_as_by_itself_in_the_tasks_order(roberta, answers):
    found = answers(roberta)
    model = AutoModelForSequenceClassification.from_pretrained(roberta).eval()
    tokenizer = AutoTokenizer.from_pretrained(roberta)
    for row, example in zip(found, answers.examples, strict=True):
        text = tokenizer(example.text_a, example.text_b, max_length=32, truncation=True)
        batch = {name: torch.tensor([ids]) for name, ids in text.items()}
        with torch.inference_mode():
            expected = model(**batch).logits[0].flip(0)
        torch.testing.assert_close(torch.from_numpy(row), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "skipped"), [("roberta", 2), ("bert", 0)])
def test_a_teacher_of_fewer_positions_reads_shorter_texts(family, skipped, answers, tmp_path):
    """RoBERTa's first positions serve no token."""
    sizes = {"max_position_embeddings": 8, "num_labels": 2, "id2label": NAMES}
    folder = save(tiny_encoder(family, "ForSequenceClassification", **sizes), tmp_path / family)
    found = answers(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    example = answers.examples[0]
    options = {"max_length": 8 - skipped, "truncation": True, "return_tensors": "pt"}
    text = tokenizer(example.text_a, example.text_b, **options)
    assert text.input_ids.shape[1] == 8 - skipped
    with torch.inference_mode():
        expected = model(**text).logits[0].flip(0)
    torch.testing.assert_close(torch.from_numpy(found[0]), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"type_vocab_size": 1}, "gives segment 1 to a text, type_vocab_size is 1"),
        ({"vocab_size": 6}, "vocab_size is 6"),
        ({"pad_token_id": None}, "has no padding token"),
    ],
)
def test_what_a_teacher_cannot_read_is_said_before_it_reads(sizes, words, answers, tmp_path):
    sizes = {"num_labels": 2, "id2label": NAMES, **sizes}
    folder = save(tiny_encoder("bert", "ForSequenceClassification", **sizes), tmp_path / "bert")
    with pytest.raises(UserError, match=words):
        answers(folder)
    assert not answers.computed


def test_answers_are_computed_once_for_the_same_weights_and_examples(roberta, answers):
    first = answers(roberta)
    assert np.array_equal(answers(roberta), first)
    assert len(answers.computed) == 1
    answers(roberta, answers.examples[1:])
    weights = load_file(roberta / "model.safetensors")
    model = AutoModelForSequenceClassification.from_pretrained(roberta)
    model.classifier.out_proj.bias.data += 1
    model.save_pretrained(roberta)
    assert weights.keys() == load_file(roberta / "model.safetensors").keys()
    torch.testing.assert_close(torch.from_numpy(answers(roberta)), torch.from_numpy(first) + 1)
    assert len(answers.computed) == 3


EAGER = {"elbert": {"thres_name": "entropy", "exit_thres": 1.0}, "albert_act": {}}
EAGER["ponder_albert"] = {"exit_criteria": "threshold", "exit_thres": 0.0}


@pytest.mark.parametrize("mode", EAGER)
def test_a_teacher_of_our_own_answers_from_its_last_layer(mode, answers, glue, tmp_path):
    glue(tmp_path, "--do_train", "--model_type", mode).done()
    deep = answers(tmp_path)
    edit_json(tmp_path / "config.json", **EAGER[mode])  # all would exit after layer 1
    np.testing.assert_array_equal(answers(tmp_path), deep)
    assert len(answers.computed) == 2


def test_what_cannot_teach_is_refused(roberta, albert_dir, rte, trained_once, tmp_path, script):
    three = tiny_encoder("bert", "ForSequenceClassification", num_labels=3)
    other = tiny_encoder("bert", "ForSequenceClassification", id2label={0: "entailment", 1: "no"})
    cases = {
        save(three, tmp_path / "three"): ["LABEL_0, LABEL_1, LABEL_2", "rte", "not_entailment"],
        save(other, tmp_path / "other"): ["entailment, no;", "not_entailment has no counterpart"],
        save(tiny_encoder("bert"), tmp_path / "bare"): ["not fine-tuned", "classifier"],
        rte: ["cannot be loaded"],
    }
    command = flags(albert_dir, rte, tmp_path / "out", "RTE", "--do_train")
    for folder, words in cases.items():
        refused(script, [*command, "--teacher", folder], f"--teacher {folder}", *words)
    refused(script, [*command, "--unlabelled_file", rte / "test.tsv"], "--teacher")
    with_teacher = [*command, "--teacher", trained_once]
    refused(script, [*with_teacher, "--model_type", "ponder_albert"], "learns from labels")
    refused(script, [*with_teacher, "--unlabelled_file", "no.csv"], "no.csv does not exist")
    refused(script, [*with_teacher, "--teacher", tmp_path / "out"], "also --output_dir")


def test_regression_learns_the_teachers_values(tmp_path, albert_dir, script):
    data = write_sts_b(tmp_path / "STS-B")
    one = flags(albert_dir, data, tmp_path / "teacher", "STS-B", "--do_train")
    script(run_glue.main, *one).done()
    more = ("--unlabelled_file", data / "test.tsv", "--teacher", tmp_path / "teacher")
    two = flags(albert_dir, data, tmp_path / "out", "STS-B", "--do_train", "--do_eval", *more)
    script(run_glue.main, *two).done()
    assert json.loads((tmp_path / "out/training.json").read_text())["steps"] == 3  # of 22 examples
