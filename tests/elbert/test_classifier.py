"""`Classifier`: answers of the weights that there are, texts and pairs, shapes of answers."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import elbert
from elbert import Classifier, UserError, cast_layers, classify
from elbert.cpu_packing import PACKABLE
from elbert.loading.weights import load_trained_model
from tests.commands import ROOT
from tests.conftest import TINY, tiny_model
from tests.models import assert_near, word_tokenizer

TEXTS = ["the cat sat on a mat", "a dog ran", "my cool new text"]
SIZES = {**TINY, "max_position_embeddings": 24, "exit_thres": 0.5}


def saved(folder: Path, **keys) -> Path:
    tiny_model(**SIZES, **keys).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("classifier") / "model")


@pytest.fixture
def classifier(folder) -> Classifier:
    return Classifier(folder)


def scores(answers: list[dict]) -> torch.Tensor:
    return torch.tensor([answer["score"] for answer in answers])


def plain_scores(model: torch.nn.Module) -> torch.Tensor:
    """The model's own, one text at a time, without packing."""
    tokenizer = word_tokenizer()
    with torch.inference_mode():
        outputs = [model.eval()(**tokenizer(text, return_tensors="pt")) for text in TEXTS]
    return torch.stack([out.logits.softmax(-1).amax() for out in outputs])


def halve(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.mul_(0.5)


def step(model: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids, labels = torch.tensor([[2, 5, 6, 3]]), torch.tensor([1])
    model(input_ids=ids, labels=labels, output_all_exits=True).loss.backward()
    optimizer.step()


EDITS = {
    "in place": lambda model: halve(layer_of(model).ffn.weight),
    "all in place": lambda model: [halve(parameter) for parameter in model.parameters()],
    "its .data": lambda model: [x.data.mul_(0.5) for x in model.parameters()],
    "embeddings": lambda model: halve(model.get_input_embeddings().weight),
    "load_state_dict": lambda model: model.load_state_dict(tiny_model(3, **SIZES).state_dict()),
    "an optimiser step": step,
    "train()": lambda model: step(model.train()),
    "bf16": lambda model: model.to(torch.bfloat16),
    "double": lambda model: model.double(),
    "cast_layers": lambda model: cast_layers(model, torch.bfloat16),
}


def layer_of(model: torch.nn.Module) -> torch.nn.Module:
    return model.albert.encoder.albert_layer_groups[0].albert_layers[0]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])  # eager attention is not packed
@pytest.mark.parametrize("edit", EDITS)
def test_a_classifier_never_answers_with_weights_that_have_changed(folder, edit, attention):
    """What changes its weights raises, or its next answers are those of the changed model."""
    classifier = Classifier(folder)
    twin = load_trained_model(folder)
    for model in (classifier.model, twin):
        model.config._attn_implementation = attention
    if attention == "eager":
        classifier.model = load_trained_model(folder).requires_grad_(False)
        classifier.model.set_attn_implementation("eager")
    assert_near(scores(classifier(TEXTS)), plain_scores(twin))
    try:
        EDITS[edit](classifier.model)
    except (UserError, RuntimeError, AttributeError):
        return
    EDITS[edit](twin)
    assert_near(scores(classifier(TEXTS)), plain_scores(twin), 1e-2 if edit != "double" else 1e-5)


@pytest.mark.skipif(not PACKABLE, reason="torch without oneDNN packs nothing")
@pytest.mark.parametrize("edit", ["in place", "its .data", "train()", "bf16", "cast_layers"])
def test_a_packed_classifier_refuses(classifier, edit):
    with pytest.raises((UserError, RuntimeError, AttributeError)):
        EDITS[edit](classifier.model)


def test_another_threshold_takes_effect_at_the_next_call(classifier):
    classifier.model.config.exit_thres = 1.0
    assert {answer["exit_layer"] for answer in classifier(TEXTS)} == {1}
    classifier.model.config.exit_thres = 0.0
    classifier.model.config.cnt_thres = 4
    assert min(answer["exit_layer"] for answer in classifier(TEXTS)) > 1


def test_a_tuple_of_two_strings_is_one_pair(classifier, folder):
    pair = ("the cat sat", "on a mat")
    answer = classifier(pair)
    assert set(answer) == {"label", "score", "exit_layer"}
    assert classifier([pair]) == [answer] == [classify(folder, pair)]
    for alone, text in zip(classifier(list(pair)), pair, strict=True):
        assert alone["score"] == pytest.approx(classifier(text)["score"], abs=1e-6)
        assert alone["score"] != pytest.approx(answer["score"], abs=1e-6)


@pytest.mark.parametrize(
    ("texts", "number"),
    [
        (["the cat", None], 1),
        (["the cat", float("nan")], 1),
        ([b"the cat"], 0),
        ([("the", "cat", "sat")], 0),
        (("the", "cat", "sat"), 0),
        (("the cat",), 0),
        ({"text": "the cat"}, 0),
    ],
)
def test_what_is_no_text_is_an_error_with_its_number(classifier, texts, number):
    with pytest.raises(UserError, match=f"text {number}"):
        classifier([texts] if isinstance(texts, dict) else texts)


@pytest.mark.parametrize("numbers", [{"batch_size": 0}, {"batch_size": -1}, {"top_k": 0}])
def test_odd_numbers_are_errors(classifier, numbers):
    with pytest.raises(UserError, match="allowed is 1 or more"):
        classifier(TEXTS, **numbers)


@pytest.mark.parametrize(
    "keys",
    [{"num_labels": 3}, {"num_labels": 3, "problem_type": "multi_label_classification"}],
    ids=["classes", "several labels"],
)
def test_an_answer_has_one_shape_whatever_top_k(tmp_path, keys):
    classifier = Classifier(saved(tmp_path, **keys))
    for text in (TEXTS[0], TEXTS):
        answers = {k: classifier(text, top_k=k) for k in (1, 2, None)}
        for k, answer in answers.items():
            if isinstance(text, list):
                answer, first = answer[1], answers[1][1]
            else:
                first = answers[1]
            classes = answer.pop("classes", None)
            assert answer == first
            assert classes is None if k == 1 else len(classes) == (k or 3)
            for label in classes or ():
                assert set(label) == {"label", "score"}


def test_a_classifier_can_be_pickled(classifier):
    assert_near(scores(pickle.loads(pickle.dumps(classifier))(TEXTS)), scores(classifier(TEXTS)))


def test_longer_texts_are_cut_where_the_tokenizer_says(tmp_path):
    folder = saved(tmp_path)
    tokenizer = word_tokenizer()
    tokenizer.model_max_length = 5
    tokenizer.save_pretrained(folder)
    classifier = Classifier(folder)
    assert classifier.max_length == 5
    cut, whole = "the cat sat", "the cat sat on a mat"
    assert classifier(whole)["score"] == pytest.approx(classifier(cut)["score"], abs=1e-6)
    longer = Classifier(folder, max_length=20)
    assert longer(whole)["score"] != pytest.approx(longer(cut)["score"], abs=1e-6)


def test_all_lists_what_is_public_and_an_import_sets_no_variable():
    assert sorted(elbert.__all__) == elbert.__all__
    assert all(hasattr(elbert, name) for name in elbert.__all__)
    code = "import os; before = dict(os.environ); import elbert; print(before == dict(os.environ))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert os.path.samefile(elbert.__path__[0], ROOT / "elbert")
