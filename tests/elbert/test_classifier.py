"""`Classifier`: answers of the weights that there are, texts and pairs, shapes of answers."""

import copy
import json
import os
import pickle
import random
import select
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elbert
from elbert import Classifier, UserError, cast_layers, classify
from elbert.onnx_file import describe_model
from evaluation.modes import MODES
from modeling.cpu_packing import PACKABLE
from modeling.files import weights_hash
from modeling.loading.weights import load_trained_model
from tests.commands import ROOT, caller_state, ran
from tests.conftest import TINY, tiny_model
from tests.cpu_recorder import graphs_on_cpu
from tests.models import assert_near, tiny_act, tiny_ponder, word_tokenizer

TEXTS = ["the cat sat on a mat", "a dog ran", "my cool new text"]
SIZES = {**TINY, "max_position_embeddings": 24, "exit_thres": 0.5}


def random_texts(count: int) -> list[str]:
    """Make texts of 1 to 12 words, which exit after all layers at exit_thres 0.8."""
    words = " ".join(TEXTS).split()
    draw = random.Random(0)
    return [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(count)]


def saved(folder: Path, seed: int = 0, **keys) -> Path:
    tiny_model(seed, **{**SIZES, **keys}).save_pretrained(folder)
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


@pytest.mark.parametrize("long_texts", ["cut", "windows"])
def test_a_tokenizer_that_does_not_fit_the_texts_is_told_once(folder, long_texts, caplog):
    classify = Classifier(folder, long_texts=long_texts)
    classify(["the cat sat on the mat"] * 20)
    classify("the Cat")  # one odd word is none to tell of
    assert "unknown" not in caplog.text
    for _ in range(3):
        classify(["the Cat Sat On the Mat"] * 20)
    assert caplog.text.count("of the tokens are unknown ([UNK])") == 1


def test_logits_that_are_no_numbers_are_an_error_and_no_label(folder):
    broken = Classifier(folder)
    with torch.no_grad():
        broken.model.get_input_embeddings().weight.fill_(torch.nan)
    for texts in ("the cat", ["the cat", "a mat"]):
        with pytest.raises(UserError, match="NaN or infinite"):
            broken(texts)


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
        ({"sentence": "the cat"}, 0),
        ([{"text": "the cat", "text_pair": None}], 0),
        ([{"text": ["the cat", "the dog"]}], 0),
        ({"text": ["the cat", "the dog"]}, 0),  # a batch of two, and no pair
        (b"the cat", 0),
        (["the cat", "the \ud800 cat"], 1),
    ],
)
def test_what_is_no_text_is_an_error_with_its_number(classifier, texts, number):
    with pytest.raises(UserError, match=f"text {number}"):
        classifier(texts)


@pytest.mark.parametrize("texts", [None, 3, {"the cat"}, np.array([["the", "cat"]])])
def test_what_is_no_list_of_texts_is_an_error(classifier, texts):
    with pytest.raises(UserError, match=r"texts is of type .*: expected a text"):
        classifier(texts)


def test_texts_come_in_many_containers(classifier):
    """An array, dicts as HF's pipeline takes them, texts beside pairs."""
    expected = classifier(TEXTS)
    assert classifier(np.array(TEXTS)) == expected
    assert classifier([{"text": text} for text in TEXTS]) == expected
    assert classifier({"text": TEXTS[0]}) == classifier(TEXTS[0])
    pair = ("the cat sat", "on a mat")
    as_dict = {"text": pair[0], "text_pair": pair[1]}
    assert classifier(as_dict) == classifier(pair)
    mixed = classifier([TEXTS[0], as_dict, list(pair)])
    for answer, text in zip(mixed, (TEXTS[0], pair, pair), strict=True):
        assert answer == pytest.approx(classifier(text), abs=1e-6)


@pytest.mark.parametrize(
    "numbers",
    [{"batch_size": 0}, {"batch_size": -1}, {"batch_size": 2.5}, {"top_k": 0}, {"top_k": -1}],
)
def test_odd_numbers_are_errors(classifier, numbers):
    with pytest.raises(UserError, match="allowed is a whole number of at least 1"):
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


def test_a_copy_has_the_exit_keys_and_finds_the_folder_from_elsewhere(
    folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder.parent)
    classifier = Classifier(folder.name, max_length=6)
    classifier.config.exit_thres = 1.0
    pickled = pickle.dumps(classifier)
    monkeypatch.chdir(tmp_path)
    for twin in (pickle.loads(pickled), copy.deepcopy(classifier)):
        assert twin.config.exit_thres == 1.0
        assert twin.max_length == 6
        assert twin(TEXTS) == classifier(TEXTS)


def test_a_classifier_that_nobody_holds_is_freed(folder):
    classifier = Classifier(folder)
    classifier(TEXTS)
    next(classifier(iter(TEXTS)))
    model = weakref.ref(classifier.model)
    del classifier
    assert model() is None


def test_an_iterator_gives_an_iterator_in_order_that_reads_no_further_than_it_says(
    classifier, monkeypatch
):
    monkeypatch.setattr("elbert.classifier.READ_AHEAD", 4)
    texts = random_texts(11)
    expected = classifier(texts)
    read = []
    answers = classifier(text for text in texts if not read.append(text))
    for number, answer in enumerate(answers):
        assert answer == pytest.approx(expected[number], abs=1e-6)
        assert len(read) <= (number // 4 + 1) * 4
    assert number == 10
    assert list(classifier(iter([]))) == []


@pytest.mark.parametrize("bad", [None, ValueError("the disk")])
def test_an_iterator_answers_what_came_before_an_error(classifier, monkeypatch, bad):
    monkeypatch.setattr("elbert.classifier.READ_AHEAD", 2)

    def texts():
        yield from TEXTS
        if bad:
            raise bad
        yield bad

    answers = []
    with pytest.raises((UserError, ValueError), match=r"text 3 is None|the disk"):
        answers.extend(classifier(texts()))
    assert [answer["label"] for answer in answers] == [a["label"] for a in classifier(TEXTS)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_length": 2}, "max_length = 2: allowed is 3 or more"),
        ({"max_length": -3}, "max_length = -3: allowed is 3 or more"),
        ({"max_length": "16"}, "max_length = '16': allowed is 3 or more"),
        ({"dtype": "int8"}, "allowed are fp32, bf16, fp16 and auto"),
        ({"device": "gpu"}, "device = 'gpu'"),
        ({"long_texts": "split"}, "allowed are cut and windows"),
        ({"stop_score": 0.9}, "with long_texts='windows'"),
        ({"long_texts": "windows", "stop_score": 90}, "stop_score = 90: allowed is a probability"),
        ({"long_texts": "windows", "stop_score": "0.9"}, "stop_score = '0.9': allowed is"),
        ({"long_texts": "windows", "stop_score": True}, "stop_score = True: allowed is"),
        ({"onnx": "no.onnx"}, "no.onnx: no such file"),
        ({"onnx": "file.onnx", "dtype": "bf16"}, "type of its own"),
    ],
)
def test_an_argument_that_cannot_be_is_an_error(folder, arguments, words):
    with pytest.raises(UserError, match=words):
        Classifier(folder, **arguments)


def test_a_gpu_that_is_not_there_is_an_error_that_says_what_is(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"device = cuda:7: torch finds no CUDA here"):
        Classifier(folder, device="cuda:7")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for count, there in ((1, "cuda:0"), (3, "cuda:0 to cuda:2")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        words = f"device = cuda:7: there is no such GPU here; allowed is {there}$"
        with pytest.raises(UserError, match=words):
            Classifier(folder, device="cuda:7")


@pytest.mark.parametrize("long_texts", ["cut", "windows"])
def test_on_a_gpu_a_classifier_replays_graphs(folder, long_texts, monkeypatch):
    """A recorder for the CPU is in CUDA's place."""
    texts = [*TEXTS, " ".join(TEXTS * 3)]
    expected = Classifier(folder, long_texts=long_texts, max_length=12)(texts)
    recorder = graphs_on_cpu(monkeypatch)
    classifier = Classifier(folder, long_texts=long_texts, max_length=12)
    together, alone = classifier(texts), [classifier(text) for text in texts]
    assert recorder.replays > len(texts)
    for answers in (together, alone):
        for answer, wanted in zip(answers, expected, strict=True):
            assert answer.pop("score") == pytest.approx(wanted["score"], abs=1e-5)
            assert answer == {name: value for name, value in wanted.items() if name != "score"}
    classifier.config.exit_thres = 1.0
    assert {answer["exit_layer"] for answer in classifier(texts)} == {1}


def test_the_folder_around_a_model_is_an_error_that_names_the_model(folder, tmp_path):
    model = shutil.copytree(folder, tmp_path / "reviews/model")
    with pytest.raises(UserError, match=f"give {model}$"):
        Classifier(model.parent)


def export(folder: Path) -> Path:
    """Export the model in a folder to a file in it."""
    pytest.importorskip("onnxruntime")
    graph = pytest.importorskip("modeling.export.graph")
    model = load_trained_model(folder)
    facts = {**describe_model(model), "weights": weights_hash(folder)}
    metadata = {name: json.dumps(value) for name, value in facts.items()}
    exported = graph.to_onnx(MODES["elbert"].export_loop(model), metadata)
    path = folder / "classifier.onnx"
    path.write_bytes(graph.ir.to_proto(exported).SerializeToString())
    return path


@pytest.fixture(scope="module")
def file_of_folder(folder) -> Path:
    return export(folder)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path, content: path.write_bytes(content[:-999]), "fetch the file again"),
        (lambda path, content: path.write_bytes(b"version https://git-lfs"), "git lfs pull"),
        (lambda path, content: path.symlink_to("gone.onnx"), "is a link to gone.onnx"),
    ],
)
def test_an_onnx_file_that_is_not_all_there_is_named(
    spoil, words, folder, file_of_folder, tmp_path
):
    path = tmp_path / "spoilt.onnx"
    spoil(path, file_of_folder.read_bytes())
    with pytest.raises(UserError, match=words) as caught:
        Classifier(folder, onnx=path)
    assert str(path) in str(caught.value)


def assert_same_answers(found: list[dict], expected: list[dict]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one["label"] == other["label"]
        assert one["exit_layer"] == other["exit_layer"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.onnx
def test_a_file_answers_as_its_model(folder, file_of_folder, tmp_path):
    """Alone and in batches, from an iterator, in copies, without weights in the folder."""
    model = Classifier(folder)
    file = Classifier(folder, onnx=file_of_folder.name)
    deployed = shutil.copytree(folder, tmp_path / "model")
    (deployed / "model.safetensors").unlink()
    other = Classifier(deployed, onnx=file_of_folder)
    for classifier in (model, file, other):
        classifier.config.exit_thres = 0.8
    texts = [*random_texts(40), ("the cat", "sat on a mat")]
    expected = model(texts)
    assert len({answer["exit_layer"] for answer in expected}) > 2
    for classifier in (file, pickle.loads(pickle.dumps(file)), other):
        for batch_size in (1, 7, 64):
            assert_same_answers(classifier(texts, batch_size), expected)
        assert_same_answers(list(classifier(iter(texts))), expected)
        assert_same_answers([classifier(text) for text in texts], expected)
    for classifier in (model, file):
        classifier.config.exit_thres = 1.0
    assert_same_answers(file(texts), model(texts))
    assert_same_answers(pickle.loads(pickle.dumps(file))(texts), model(texts))
    file.config.exit_price = 0.3  # which the exit rule in force does not read
    assert_same_answers(file(texts), model(texts))
    file.config.thres_name = "max_prob"
    with pytest.raises(UserError, match="exported with thres_name = "):
        file(texts)


@pytest.mark.slow
@pytest.mark.onnx
@pytest.mark.parametrize(
    "keys",
    [
        {"num_labels": 3},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 1},
    ],
    ids=["classes", "several labels", "a value"],
)
def test_the_example_without_pytorch_answers_as_a_classifier(tmp_path, keys):
    """In batches, of texts and of pairs, longer than the model too, and with another threshold."""
    folder = saved(tmp_path, exit_thres=0.8, **keys)
    file = export(folder)
    from examples.onnx_python import FileClassifier  # needs onnxruntime

    classifier = Classifier(folder)
    texts = random_texts(30)
    texts[7] = " ".join(texts[:9])
    pairs = list(pairwise(texts))
    for threshold in (0.8, 0.95):
        classifier.config.exit_thres = threshold
        example = FileClassifier(file, folder / "tokenizer.json", exit_thres=threshold)
        for batch in (texts, pairs):
            for found, expected in zip(example(batch), classifier(batch), strict=True):
                for name in ("score", "scores"):
                    if name in expected:
                        assert found.pop(name) == pytest.approx(expected.pop(name), abs=1e-5)
                assert found == expected
    with pytest.raises(ValueError, match=r"no inputs of .*: thres; it has exit_thres"):
        FileClassifier(file, folder / "tokenizer.json", thres=1)


@pytest.mark.slow
@pytest.mark.onnx
def test_a_file_of_other_weights_is_refused(file_of_folder, tmp_path):
    other = saved(tmp_path, seed=1)
    with pytest.raises(UserError, match="exported from other weights"):
        Classifier(other, onnx=file_of_folder)


def in_fork(function: Callable[[], Any]) -> Any:
    """Call a function in a forked process; the test fails where it hangs or raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, pickle.dumps(function()))
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 60)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        return pickle.load(file)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["model", "file"])
def test_threads_and_forks_answer_as_one_process_does(folder, request, source):
    """Forks are made while threads call, and the parent has computed with several threads."""
    file = request.getfixturevalue("file_of_folder") if source == "file" else None
    threads_before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        classifier = Classifier(folder, onnx=file)
        texts = random_texts(200)
        expected = classifier(texts)
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(classifier, texts) for _ in range(20)]
            for _ in range(4):
                assert_same_answers(in_fork(lambda: classifier(texts)), expected)
            for call in calls:
                assert_same_answers(call.result(), expected)
    finally:
        torch.set_num_threads(threads_before)


def by_hand(classifier: Classifier, windows: list[str]) -> tuple[torch.Tensor, list[int]]:
    """Answer windows as texts of their own: the classes' probabilities, and the exit layers."""
    answers = classifier(windows, top_k=None)
    names = list(classifier.config.id2label.values())
    rows = []
    for answer in answers:
        found = {one["label"]: one["score"] for one in answer["classes"]}
        rows.append([found[name] for name in names])
    return torch.tensor(rows), [answer["exit_layer"] for answer in answers]


PARTS_OF_TRANSFORMERS = (
    "AlbertForSequenceClassification, AutoModelForSequenceClassification, BertTokenizer, "
    "PreTrainedTokenizerFast, TextClassificationPipeline"
)


@pytest.mark.slow
def test_importing_leaves_the_callers_process_as_it_was():
    """Beyond what transformers, which it imports, changes itself."""
    code = (
        f"from transformers import {PARTS_OF_TRANSFORMERS}\n"
        "from tests.commands import caller_state\n"
        "before = caller_state()\n"
        "import elbert\n"
        "[getattr(elbert, name) for name in dir(elbert)]\n"
        "assert caller_state() == before"
    )
    ran(sys.executable, "-c", code)


MODELS = {
    "elbert": lambda: tiny_model(**SIZES),
    "corrected": lambda: tiny_model(**SIZES, num_hidden_groups=2, correction_rank=2),
    "ponder_albert": lambda: tiny_ponder(exit_criteria="threshold"),
    "albert_act": lambda: tiny_act(model_class=elbert.AlbertActForSequenceClassification).float(),
}


@pytest.mark.parametrize("mode", MODELS)
def test_loading_and_classifying_leave_the_callers_process_as_it_was(mode, tmp_path):
    MODELS[mode]().save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    before = caller_state()
    Classifier(tmp_path)(TEXTS)
    assert caller_state() == before


def test_the_callers_autocast_changes_no_answer(classifier):
    texts = random_texts(12)
    expected = classifier(texts, top_k=None)
    with torch.autocast("cpu", torch.bfloat16):
        assert classifier(texts, top_k=None) == expected
        assert torch.is_autocast_enabled("cpu")
    windowed = Classifier(classifier.source, long_texts="windows", max_length=6)
    expected = windowed(texts)
    with torch.autocast("cpu", torch.bfloat16):
        assert windowed(texts) == expected


@pytest.mark.parametrize("problem_type", [None, "multi_label_classification"])
def test_a_long_text_is_answered_by_all_its_windows(tmp_path, problem_type):
    """Windows of eight words, of which the next begins two words before the end."""
    folder = saved(tmp_path, num_labels=3, problem_type=problem_type, exit_thres=0.8)
    whole = Classifier(folder, max_length=10, long_texts="windows")
    words = " ".join(random_texts(20)).split()[:23]
    windows = [words[0:8], words[6:14], words[12:20], words[18:23]]
    scores, exit_layers = by_hand(Classifier(folder), [" ".join(window) for window in windows])
    if problem_type:
        expected = scores.amax(0)
    else:
        weights = torch.tensor([10.0, 10, 10, 7])  # with [CLS] and [SEP]
        expected = (weights @ scores) / weights.sum()
    short, answer = whole([TEXTS[1], " ".join(words)], top_k=None)
    found = {one["label"]: one["score"] for one in answer["classes"]}
    assert_near(torch.tensor([found[f"LABEL_{n}"] for n in range(3)]), expected)
    assert (answer["windows"], answer["exit_layer"]) == (4, max(exit_layers))
    assert short.pop("windows") == 1
    assert_near(scores_of(short), scores_of(Classifier(folder)(TEXTS[1], top_k=None)))


def scores_of(answer: dict) -> torch.Tensor:
    return torch.tensor([one["score"] for one in answer["classes"]])


def test_a_text_stops_at_its_first_sure_window(folder):
    words = " ".join(random_texts(30)).split()[:50]
    windows = [" ".join(words[start : start + 8]) for start in range(0, 48, 6)]
    answers = Classifier(folder)(windows)
    stops = sorted({answer["score"] for answer in answers})
    for stop in (stops[0], stops[3], stops[-1]):
        classifier = Classifier(folder, max_length=10, long_texts="windows", stop_score=stop - 1e-5)
        number = next(n for n, answer in enumerate(answers) if answer["score"] >= stop)
        for texts in ([" ".join(words)], [TEXTS[0], " ".join(words), TEXTS[1]]):
            answer = classifier(texts)[len(texts) // 2]
            assert answer["label"] == answers[number]["label"]
            assert answer["score"] == pytest.approx(answers[number]["score"], abs=1e-5)
            assert answer["windows"] == number + 1


def test_of_a_pair_the_longer_text_is_split(folder):
    """The other text stands in every window: of 13 words there is room for 10, two for it."""
    words = " ".join(random_texts(20)).split()[:14]
    classifier = Classifier(folder, max_length=13, long_texts="windows")
    windows = [words[0:8], words[6:14]]
    for is_first in (True, False):
        pairs = [(" ".join(part), "a dog") for part in windows]
        pair = (" ".join(words), "a dog")
        if not is_first:
            pairs, pair = [part[::-1] for part in pairs], pair[::-1]
        answer = classifier(pair, top_k=None)
        assert answer["windows"] == 2
        scores, _ = by_hand(Classifier(folder), pairs)
        (label_0,) = (one["score"] for one in answer["classes"] if one["label"] == "LABEL_0")
        assert label_0 == pytest.approx(float(scores[:, 0].mean()), abs=1e-5)


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


def test_all_lists_what_is_public():
    assert len({*elbert.__all__}) == len(elbert.__all__)
    assert all(hasattr(elbert, name) for name in elbert.__all__)


@pytest.mark.slow
def test_an_import_sets_no_variable():
    code = "import os; before = dict(os.environ); import elbert; print(before == dict(os.environ))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert os.path.samefile(elbert.__path__[0], ROOT / "elbert")
