"""examples/serve.py: a trained model behind HTTP."""

import gzip
import json
import math
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import huggingface_hub
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import check_drift
import export_onnx
import run_glue
from elbert import Classifier, ElbertConfig, ElbertForSequenceClassification, classify
from tests.commands import main_of
from tests.conftest import edit_json, sentence
from tests.cpu_recorder import graphs_on_cpu

pytestmark = pytest.mark.slow
EXAMPLES = Path(run_glue.__file__).parent / "examples"
LIMIT = 200_000  # bytes of a request
PAIRS = [(sentence(i, 3 + i % 5), sentence(i + 1)) for i in range(24)]


@contextmanager
def serving(*flags: object) -> Iterator[tuple[subprocess.Popen, int]]:
    """A running server with its port; at most 40 texts wait."""
    pytest.importorskip("fastapi_offline")
    command = [sys.executable, EXAMPLES / "serve.py", "--port", 0, *flags]
    usual = ["--queue", 40, "--slots", 4, "--max_body_size", LIMIT, "--shutdown_seconds", 5]
    command[4:4] = usual  # flags of a test come behind, and win
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"running on http://127.0.0.1:(\d+)", line):
                yield process, int(found[1])
                break
        else:
            raise AssertionError("the server did not start")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def server(trained):
    """A running server of `trained`."""
    with serving("--model_dir", trained) as running:
        yield running


def request(
    port: int, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[HTTPResponse, str]:
    """A request's response, and the text in it."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    return response, response.read().decode()


def get(port: int, path: str) -> tuple[int, str]:
    """The status and answer of a request."""
    response, text = request(port, "GET", path)
    return response.status, text


def post(port: int, body: object, path: str = "/classify", **headers: str) -> tuple[int, Any]:
    """The status and answer of a request with this JSON, or these bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response, text = request(port, "POST", path, data, content_type="application/json", **headers)
    return response.status, json.loads(text)


def health(port: int) -> dict:
    return json.loads(get(port, "/health")[1])


def metrics(port: int) -> dict[str, float]:
    """What /metrics tells, read by Prometheus's own parser: values by name and label."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = parser.text_string_to_metric_families(get(port, "/metrics")[1])
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.parametrize("stop_score", [None, 0.5])
def test_long_texts_are_answered_in_windows(trained, stop_score):
    texts = [sentence(i, 4 + 30 * (i % 3)) for i in range(6)]
    expected = Classifier(trained, long_texts="windows", stop_score=stop_score)(texts)
    flags = ("--long_texts", "windows")
    if stop_score:
        flags += ("--stop_score", stop_score)
    with serving("--model_dir", trained, *flags) as (_, port):
        status, answer = post(port, {"texts": texts})
        assert metrics(port)["elbert_texts_total"] == len(texts)
    assert status == 200
    for got, wanted in zip(answer["answers"], expected, strict=True):
        assert got["score"] == pytest.approx(wanted.pop("score"), abs=1e-4)
        assert {name: got[name] for name in wanted} == wanted


def test_requests_share_slots_and_have_the_answers_of_classify(server, trained):
    process, port = server
    expected = classify(trained, PAIRS)
    with ThreadPoolExecutor(12) as clients:
        found = list(clients.map(lambda pair: post(port, {"texts": [pair]}), PAIRS))
        for (status, answer), wanted in zip(found, expected, strict=True):
            (got,) = answer["answers"]
            assert (status, got["label"], got["exit_layer"]) == (
                200,
                wanted["label"],
                wanted["exit_layer"],
            )
            assert got["score"] == pytest.approx(wanted["score"], abs=1e-4)
            assert got["milliseconds"] > 0
        last = clients.submit(post, port, {"texts": PAIRS})
        while health(port)["running"] == 0 and not last.done():
            pass
        process.send_signal(signal.SIGTERM)
        status, answer = last.result()
    assert (status, len(answer["answers"])) == (200, len(PAIRS))
    assert "Finished server process" in process.communicate(timeout=30)[1]


HOSTILE = {
    413: [{"texts": ["a"] * 41}, b" " * (LIMIT + 1), {"texts": ["a" * LIMIT]}],
    422: [
        *({"texts": texts} for texts in ([], "a", None, [1], [["a"]], ["a", ["b", "c"]])),
        *(
            {"texts": ["a"], **x}
            for x in ({"top_k": 0}, {"top_k": "2"}, {"topk": 2}, {"x" * 900: 1})
        ),
        *({"texts": [x] * 9} for x in (float("nan"), float("inf"), {}, [1, 2], ["a"] * 3)),
        *(b'{"texts": [%s]}' % x for x in (b'"\\ud800"', b"1e999", b'"\xff"', b'"a", "')),
        *(b'{"\\ud800": ["a"]}', b'{"texts": ["a"], "\\ud800": 1}', b"", b"NaN", b"{"),
        b'{"texts": [' + b"1, " * (LIMIT // 4) + b"1]}",
    ],
}


def test_a_request_that_cannot_be_answered_says_so_and_the_next_one_is(server):
    """Nothing that a client sends ends in an error of the server's."""
    _, port = server
    _, wanted = post(port, {"texts": ["a man"]})
    for status, bodies in HOSTILE.items():
        for body in bodies:
            found, answer = post(port, body)
            assert found == status, (body, answer)
            assert len(str(answer)) < 500
            assert "at most " in str(answer) or status != 413
    assert post(port, b"[" * LIMIT)[0] in (400, 422)  # deeper than a parser goes
    chunks = (b"x" * 1000 for _ in range(LIMIT // 1000 + 1))  # of no declared length
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/classify", chunks, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 413
    _, answer = post(port, {"texts": ["a man"]})
    assert answer["answers"][0]["label"] == wanted["answers"][0]["label"]


def test_what_it_tells_of_itself_is_what_it_answered(server, trained):
    """The classes that were asked for, too."""
    _, port = server
    assert get(port, "/ready") == (200, '{"ready":true}')
    assert math.isnan(metrics(port)["elbert_computation_cost"])
    expected = classify(trained, PAIRS, top_k=None)
    status, answer = post(port, {"texts": PAIRS, "top_k": None})
    assert post(port, {"texts": [1]})[0] == 422
    for got, wanted in zip(answer["answers"], expected, strict=True):
        assert [c["label"] for c in got["classes"]] == [c["label"] for c in wanted["classes"]]
    found = metrics(port)
    layers = [answer["exit_layer"] for answer in expected]
    assert status == 200
    assert found["elbert_requests_total 200"] == found["elbert_requests_total 422"] == 1
    assert found["elbert_request_seconds_count"] == 2
    assert found["elbert_texts_total"] == found["elbert_exit_layer_count"] == len(PAIRS)
    assert found["elbert_exit_layer_sum"] == sum(layers)
    for layer in (1, 2, 3, 4):
        below = sum(exit_layer <= layer for exit_layer in layers)
        assert found[f"elbert_exit_layer_bucket {layer}.0"] == below
    assert found["elbert_computation_cost"] == pytest.approx(sum(layers) / 4 / len(layers))
    assert found["elbert_waiting_texts"] == found["elbert_running_texts"] == 0


def test_a_text_that_the_model_cannot_answer_fails_its_request_alone(trained):
    """The model has embeddings for single texts alone, and none for the second of a pair."""
    edit_json(trained / "config.json", type_vocab_size=1)
    weights = load_file(trained / "model.safetensors")
    name = "albert.embeddings.token_type_embeddings.weight"
    weights[name] = weights[name][:1].clone()
    save_file(weights, trained / "model.safetensors", {"format": "pt"})
    texts = [[sentence(i)] if i % 3 else [("a man", sentence(i))] for i in range(18)]
    with serving("--model_dir", trained) as (_, port), ThreadPoolExecutor(9) as clients:
        found = list(clients.map(lambda text: post(port, {"texts": text}), texts))
        for number, (status, answer) in enumerate(found):
            assert status == (200 if number % 3 else 422), answer
            assert number % 3 or "type_vocab_size" in answer["detail"]
        assert post(port, {"texts": ["a man"]})[0] == 200


@pytest.mark.parametrize("kind", ["SlotRunner", "FileRunner"])
def test_a_text_with_an_unexpected_error_is_a_500_and_the_others_are_answered(trained, kind):
    """Of texts that share a batch: one has a token that the model has no embedding of."""
    pytest.importorskip("fastapi_offline")
    from serving import metrics, runners

    classifier = Classifier(trained)
    runner = getattr(runners, kind)(classifier, 4, metrics.Metrics(layers=4))
    examples = classifier.encode(PAIRS[:6])
    token_ids, segment_ids = examples[2]
    examples[2] = ([10**6, *token_ids[1:]], segment_ids)
    requests = [runners.Waiting(example, Future()) for example in examples]
    for request in requests:
        runner.queue.put(request)
    thread = Thread(target=runner.run, daemon=True)
    thread.start()
    for number, request in enumerate(requests):
        if number == 2:
            error = request.answer.exception(timeout=10)
            assert (error.status_code, "IndexError" in error.detail) == (500, True)
        else:
            logits, depth = request.answer.result(timeout=10)
            wanted = classifier(PAIRS[number])
            assert classifier.answer(logits, depth)["label"] == wanted["label"]
            assert depth["exit_layer"] == wanted["exit_layer"]
    runner.queue.put(None)
    thread.join(timeout=10)
    assert runner.metrics.registry.get_sample_value("elbert_text_errors_total") == 1


@pytest.mark.parametrize("kind", ["SlotRunner", "FileRunner"])
def test_a_text_for_which_nobody_waits_is_not_answered(trained, kind):
    """Neither one in the queue nor one that another text's answer waits beside."""
    pytest.importorskip("fastapi_offline")
    from serving import metrics, runners

    classifier = Classifier(trained)
    runner = getattr(runners, kind)(classifier, 2, metrics.Metrics(layers=4))
    requests = [runners.Waiting(example, Future()) for example in classifier.encode(PAIRS)]
    for number, each in enumerate(requests):
        runner.queue.put(each)
        if number % 3:
            each.answer.cancel()
    # The last one goes while the first is answered.
    requests[0].answer.add_done_callback(lambda _: requests[-3].answer.cancel())
    requests[0].answer.add_done_callback(lambda _: setattr(runner, "has_dropped", True))
    thread = Thread(target=runner.run, daemon=True)
    thread.start()
    waited_for = [each for number, each in enumerate(requests) if number % 3 == 0][:-1]
    for each in waited_for:
        assert each.answer.result(timeout=10)
    runner.queue.put(None)
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert runner.metrics.answers == len(waited_for)


def test_on_a_gpu_a_client_that_waits_for_each_answer_gets_it(trained, monkeypatch):
    """No answer waits for the next text. A recorder for the CPU is in CUDA's place."""
    pytest.importorskip("fastapi_offline")
    from serving import metrics, runners

    expected = Classifier(trained)(PAIRS)
    recorder = graphs_on_cpu(monkeypatch)
    classifier = Classifier(trained)
    runner = runners.SlotRunner(classifier, 2, metrics.Metrics(layers=4))
    thread = Thread(target=runner.run, daemon=True)
    thread.start()
    for example, wanted in zip(classifier.encode(PAIRS), expected, strict=True):
        waiting = runners.Waiting(example, Future())
        runner.queue.put(waiting)
        logits, depth = waiting.answer.result(timeout=10)
        assert classifier.answer(logits, depth)["label"] == wanted["label"]
        assert depth["exit_layer"] == wanted["exit_layer"]
    runner.queue.put(None)
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert recorder.replays > len(PAIRS)


@pytest.mark.onnx
def test_an_exported_file_answers_as_its_model(script, trained, tmp_path):
    pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    script(export_onnx.main, "--model_dir", trained, "--output", file).done()
    expected = classify(trained, PAIRS)
    flags = ("--model_dir", trained, "--onnx", file)
    with serving(*flags) as (process, port), ThreadPoolExecutor(9) as clients:
        found = list(clients.map(lambda pair: post(port, {"texts": [pair]}), PAIRS))
        for (status, answer), wanted in zip(found, expected, strict=True):
            (got,) = answer["answers"]
            assert (status, got["exit_layer"]) == (200, wanted["exit_layer"])
            assert got["score"] == pytest.approx(wanted["score"], abs=1e-4)
        assert metrics(port)["elbert_texts_total"] == len(PAIRS)
        process.send_signal(signal.SIGTERM)
        assert "Finished server process" in process.communicate(timeout=30)[1]


def test_of_a_long_text_the_beginning_counts(server, trained):
    """It is cut before it is tokenised, far behind the last token that the model reads."""
    _, port = server
    long = " ".join([sentence(3, 12)] * (LIMIT // 200))
    for texts in ([long], [(long, long)]):
        (got,) = post(port, {"texts": texts})[1]["answers"]
        (wanted,) = classify(trained, texts)
        assert (got["label"], got["exit_layer"]) == (wanted["label"], wanted["exit_layer"])
        assert got["score"] == pytest.approx(wanted["score"], abs=1e-4)


def test_half_a_request_does_not_keep_the_server(server):
    """--shutdown_seconds after SIGTERM it ends."""
    process, port = server
    head = b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    halves = [head + b"Content-Length: 100\r\n\r\n{", head[:30], head]
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in halves]
    for client, half in zip(clients, halves, strict=True):
        client.sendall(half)
    assert post(port, {"texts": ["a man"]})[0] == 200
    process.send_signal(signal.SIGTERM)
    assert "Finished server process" in process.communicate(timeout=30)[1]


@pytest.fixture
def slow_server(albert_dir, tmp_path):
    """A server of a model whose texts all run its 60 layers, and that takes 100,000 windows."""
    config = json.loads((albert_dir / "config.json").read_text())
    folder = Path(shutil.copytree(albert_dir, tmp_path / "deep"))
    model = ElbertForSequenceClassification(
        ElbertConfig(**{**config, "num_hidden_layers": 60, "exit_thres": 0.0, "cnt_thres": 60})
    )
    model.save_pretrained(folder)
    with serving("--model_dir", folder, "--long_texts", "windows", "--queue", 10**5) as running:
        yield running


LONG = {"texts": [sentence(3, 12) * (LIMIT // 60)]}


def hang_up_behind(port: int, body: object, seconds: float) -> None:
    """Send a request, wait a little, and hang up."""
    data = json.dumps(body).encode()
    head = f"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(head.encode() + data)
    time.sleep(seconds)
    client.close()


def test_what_waits_for_clients_that_have_gone_is_dropped(slow_server):
    _, port = slow_server
    windows = post(port, {"texts": ["a man"]})[1]["answers"][0]["windows"]
    assert windows == 1
    for _ in range(3):
        hang_up_behind(port, LONG, 0.5)
    hang_up_behind(port, {}, 0)  # half a request, or an answer that nobody reads
    deadline = time.monotonic() + 20
    while any(health(port).values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    told = metrics(port)
    assert told["elbert_requests_total 499"] >= 3
    assert told["elbert_requests_total 200"] == told["elbert_texts_total"] == 1
    assert told["elbert_exit_layer_count"] < 200  # of some thousand windows
    assert post(port, {"texts": ["a man"]})[0] == 200


def test_when_the_time_is_over_what_is_open_is_answered_with_503_and_the_server_ends(slow_server):
    process, port = slow_server
    with ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(post, port, LONG) for _ in range(3)]
        while health(port)["waiting"] < 100:
            time.sleep(0.1)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        for each in asked:
            status, answer = each.result()
            assert (status, "the server is ending" in answer["detail"]) == (503, True)
        assert "Finished server process" in process.communicate(timeout=30)[1]
    assert 4.5 < time.monotonic() - start < 9  # --shutdown_seconds 5


# Ways to ask.


@pytest.fixture(scope="module")
def shared(trained_once):
    """The port of a running server of `trained_once`, and a Classifier."""
    page = "https://example.org"
    with serving("--model_dir", trained_once, "--allow_origin", page) as (_, port):
        yield port, Classifier(trained_once)


def near(scores: list[float]) -> Any:
    return pytest.approx(scores, abs=1e-4)


def test_a_text_or_pair_may_be_a_dict(shared):
    port, classifier = shared
    dicts = [{"text": first, "text_pair": second} for first, second in PAIRS[:4]]
    for texts, wanted in ((dicts, PAIRS[:4]), ([{"text": "a man"}, "a dog"], ["a man", "a dog"])):
        status, answer = post(port, {"texts": texts})
        assert status == 200
        scores = [each["score"] for each in answer["answers"]]
        assert scores == near([each["score"] for each in classifier(wanted)])
    assert post(port, {"texts": [{"text": "a", "txt": "b"}]})[0] == 422


@pytest.mark.parametrize("path", ["", "/predict"])
def test_the_hubs_client_is_answered(shared, path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    port, classifier = shared
    client = huggingface_hub.InferenceClient(f"http://127.0.0.1:{port}{path}")
    text = sentence(5)
    wanted = classifier(text, top_k=None)["classes"]
    for top_k in (None, 1):
        found = client.text_classification(text, top_k=top_k)
        assert [each.label for each in found] == [each["label"] for each in wanted][:top_k]
        assert [each.score for each in found] == near([each["score"] for each in wanted][:top_k])
    (logits, _), *_ = classifier.run(classifier.encode([text]), 1)
    for function, scores in (("none", logits), ("sigmoid", logits.sigmoid())):
        found = client.text_classification(text, function_to_apply=function)
        assert [each.score for each in found] == near(sorted(scores.tolist(), reverse=True))


def test_a_client_of_text_embeddings_inference_is_answered(shared):
    """Its ways to write texts and pairs, as its documentation has them."""
    port, classifier = shared
    pair = PAIRS[3]

    def classes(text) -> list[dict]:
        return classifier(text, top_k=None)["classes"]

    for inputs, wanted in (
        ("a man", classes("a man")),
        (["a man"], classes("a man")),
        (list(pair), classes(pair)),
        ([["a man"], ["a dog"]], [classes("a man"), classes("a dog")]),
        ([list(pair), ["a dog"]], [classes(pair), classes("a dog")]),
        ({"text": pair[0], "text_pair": pair[1]}, classes(pair)),
    ):
        status, found = post(port, {"inputs": inputs}, "/predict")
        assert status == 200, found
        rows = zip(found, wanted, strict=True) if isinstance(found[0], list) else [(found, wanted)]
        for row, wanted_row in rows:
            assert [each["label"] for each in row] == [each["label"] for each in wanted_row]
            assert [x["score"] for x in row] == near([x["score"] for x in wanted_row])
    (logits, _), *_ = classifier.run(classifier.encode(["a man"]), 1)
    _, found = post(port, {"inputs": "a man", "raw_scores": True}, "/predict")
    assert [each["score"] for each in found] == near(sorted(logits.tolist(), reverse=True))
    long = {"inputs": sentence(1, 200)}
    cut = classes(sentence(1, 200))
    for body in ({**long, "truncate": True}, long):
        assert [x["score"] for x in post(port, body, "/predict")[1]] == near(
            [x["score"] for x in cut]
        )
    for status, body in (
        (413, {**long, "truncate": False}),
        (422, {"inputs": ["a", "b", "c"]}),
        (422, {"inputs": []}),
        (422, {"inputs": [[]]}),
        (422, {"inputs": 1}),
        (422, {"inputs": "a", "raw_score": True}),
        (422, {"inputs": "a", "raw_scores": True, "parameters": {"function_to_apply": "sigmoid"}}),
        (422, {"inputs": "a", "truncation_direction": "Left"}),
        (413, {"inputs": [["a"]] * 41}),
    ):
        found, answer = post(port, body, "/predict")
        assert (found, answer["error_type"]) == (status, "Validation"), answer
        assert answer["error"]
    # A hub's list of strings is one of texts, and never a pair.
    _, found = post(port, {"inputs": ["a man", "a dog"], "parameters": {}}, "/predict")
    assert [row[0]["score"] for row in found] == near(
        [classes(text)[0]["score"] for text in ("a man", "a dog")]
    )


@pytest.mark.parametrize("is_binary", [True, False])
def test_tritons_client_is_answered(shared, is_binary):
    client_of = pytest.importorskip("tritonclient.http")
    errors = pytest.importorskip("tritonclient.utils")
    port, classifier = shared
    client = client_of.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("RTE")
    assert client.is_model_ready("RTE", "1")
    assert not client.is_model_ready("none")
    outputs = {output["name"] for output in client.get_model_metadata("RTE")["outputs"]}
    assert outputs == {"label", "score", "scores", "exit_layer"}
    firsts = np.array([first for first, _ in PAIRS], dtype=object)
    seconds = np.array([second.encode() for _, second in PAIRS], dtype=object)
    inputs = []
    for name, texts in (("text", firsts), ("text_pair", seconds)):
        tensor = client_of.InferInput(name, [len(texts), 1], "BYTES")
        tensor.set_data_from_numpy(texts[:, None], binary_data=is_binary)
        inputs.append(tensor)
    wanted_outputs = None
    if not is_binary:
        wanted_outputs = [
            client_of.InferRequestedOutput(name, binary_data=name == "label") for name in outputs
        ]
    result = client.infer("RTE", inputs, outputs=wanted_outputs, request_id="7")
    assert result.get_response()["id"] == "7"
    expected = classifier(PAIRS, top_k=None)
    labels = [label.decode() for label in result.as_numpy("label")]
    assert labels == [each["label"] for each in expected]
    assert result.as_numpy("exit_layer").tolist() == [each["exit_layer"] for each in expected]
    assert result.as_numpy("score").tolist() == near([each["score"] for each in expected])
    names = list(classifier.config.id2label.values())
    for scores, each in zip(result.as_numpy("scores").tolist(), expected, strict=True):
        by_label = {entry["label"]: entry["score"] for entry in each["classes"]}
        assert scores == near([by_label[name] for name in names])
    with pytest.raises(errors.InferenceServerException, match="here is 'RTE'"):
        client.infer("none", inputs)


BAD_TENSORS: list[dict] = [
    {"inputs": []},
    {
        "inputs": [
            {"name": name, "shape": [1], "datatype": "BYTES", "data": ["a"]}
            for name in ("text", "label")
        ]
    },
    {"inputs": [{"name": "text", "shape": [1], "datatype": "INT64", "data": [1]}]},
    {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a"]}]},
    {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [1]}]},
    {"inputs": [{"name": "text", "shape": [0], "datatype": "BYTES", "data": []}]},
    {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES"}]},
    {"inputs": [{"name": "text_pair", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
    {
        "inputs": [
            {
                "name": "text",
                "shape": [1],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": 9},
            }
        ]
    },
    {
        "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
        "outputs": [{"name": "logits"}],
    },
]


@pytest.mark.parametrize("body", BAD_TENSORS)
def test_tensors_that_are_no_texts_are_refused(shared, body):
    port, _ = shared
    status, answer = post(port, body, "/v2/models/RTE/infer")
    assert (status, list(answer)) == (422, ["error"])


def test_binary_tensors_of_any_bytes_are_texts_or_refused(shared):
    port, _ = shared
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES"}
    for content in (b"", b"\x01", b"\x02\0\0\0a", b"\xff\xff\xff\xffa", b"\x01\0\0\0\xff"):
        size = {"parameters": {"binary_data_size": len(content)}}
        head = json.dumps({"inputs": [{**tensor, **size}]}).encode()
        length = str(len(head))
        status, answer = post(
            port,
            head + content,
            "/v2/models/RTE/infer",
            inference_header_content_length=length,
        )
        assert (status, list(answer)) == (422, ["error"])
    for length in ("-1", "x", "9999"):
        status, _ = post(
            port, b"{}", "/v2/models/RTE/infer", inference_header_content_length=length
        )
        assert status == 422


def test_what_is_not_there_is_said_in_the_words_of_the_route(shared):
    port, _ = shared
    assert json.loads(get(port, "/v2/models/none")[1])["error"]
    assert get(port, "/v2/models/RTE/versions/2")[0] == 404
    assert get(port, "/none") == (404, '{"detail":"Not Found"}')
    assert get(port, "/classify")[0] == 405


def test_balancers_and_browsers_ask_by_head_and_options(shared):
    port, _ = shared
    for path in ("/", "/health", "/ready", "/metrics", "/v2/health/ready", "/v2/models/RTE"):
        response, text = request(port, "HEAD", path)
        assert (response.status, text) == (200, "")
        assert get(port, path)[0] == 200
    response, _ = request(port, "OPTIONS", "/classify")
    assert (response.status, response.headers["Allow"]) == (204, "OPTIONS, POST")
    for origin, is_allowed in (("https://example.org", True), ("https://other.org", False)):
        response, _ = request(
            port, "OPTIONS", "/classify", origin=origin, access_control_request_method="POST"
        )
        allowed = response.headers["Access-Control-Allow-Origin"] == origin
        assert (response.status == 200, allowed) == (is_allowed, is_allowed)


def test_the_page_of_all_routes_needs_no_network(shared):
    port, _ = shared
    status, page = get(port, "/docs")
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert (status, len(links)) == (200, 3)
    for link in links:
        assert link.startswith("/")
        assert get_bytes(port, link)[0] == 200
    text = get(port, "/openapi.json")[1]
    document = json.loads(text)
    routes = {"/classify", "/predict", "/v2/models/{name}/infer", "/metrics"}
    assert routes <= document["paths"].keys()
    references = re.findall(r'"\$ref":"#/([^"]+)"', text)
    assert references
    for reference in references:
        part = document
        for name in unquote(reference).split("/"):
            part = part[name.replace("~1", "/")]
        assert part


def get_bytes(port: int, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()


def test_a_body_that_is_packed_is_refused(shared):
    port, _ = shared
    packed = gzip.compress(json.dumps({"texts": ["a"]}).encode())
    assert post(port, packed, content_encoding="gzip")[0] == 415


def test_every_statuss_counter_is_there_from_the_start_and_connections_stay_open(trained):
    with serving("--model_dir", trained, "--keep_alive_seconds", 2) as (_, port):
        told = metrics(port)
        for status in (200, 413, 415, 422, 499, 500, 503):
            assert told[f"elbert_requests_total {status}"] == 0
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        client.settimeout(10)
        reply = b""
        while not reply.endswith(b"}"):  # headers and body may come apart
            reply += client.recv(10_000)
        start = time.monotonic()
        assert client.recv(10) == b""
        assert 1 < time.monotonic() - start < 4


def test_under_load_memory_stays_level_and_the_latency_has_the_wait(server):
    """5,000 requests of 1 to 8 texts of 1 to 200 words, 8 at a time."""
    process, port = server
    pages, seen = [], []

    def ask(number: int) -> int:
        texts = [sentence(number + i, 1 + number * 7 % 200) for i in range(1 + number % 8)]
        status = 503
        while status == 503:  # full: a client comes again
            start = time.perf_counter()
            status, answer = post(port, {"texts": texts})
        waited = max(each["milliseconds"] for each in answer["answers"])
        seen.append((waited, 1e3 * (time.perf_counter() - start)))
        if number % 500 == 499:
            pages.append(int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]))
        return status

    with ThreadPoolExecutor(8) as clients:
        assert set(clients.map(ask, range(5_000))) == {200}
    assert pages[-1] < 1.1 * pages[0]
    assert all(told <= measured for told, measured in seen)
    assert sum(told for told, _ in seen) > 0.5 * sum(measured for _, measured in seen)
    assert health(port) == {"waiting": 0, "running": 0}


def test_a_port_that_there_is_not_is_refused(script):
    pytest.importorskip("fastapi_offline")
    script(main_of("serve.py"), "--model_dir", "x", "--port", 99999).refused("--port", "65535")


def test_what_is_not_installed_is_said_in_a_line():
    code = "import runpy, sys; sys.modules['uvicorn'] = None; runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-c", code, str(EXAMPLES / "serve.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "pip install -r requirements/serve.txt" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_metrics_tell_whether_the_texts_are_like_the_reference(trained, glue, script, tmp_path):
    """The server's counters, by check_drift.py and as gauges, against a table of the same texts."""
    glue(trained, "--do_eval").done()
    reference = json.loads((trained / "eval_results.json").read_text())
    texts = [(sentence(i, 12), sentence(i, 12)) for i in range(30)]
    table = tmp_path / "new.csv"
    table.write_text("\n".join(["sentence1,sentence2", *(f"{a},{b}" for a, b in texts)]))
    earlier = tmp_path / "earlier.txt"
    flags = ("--model_dir", trained)
    with serving("--model_dir", trained) as (_, port):
        post(port, {"texts": [PAIRS[0]]})
        earlier.write_text(get(port, "/metrics")[1])
        post(port, {"texts": texts})
        told = metrics(port)
        address = f"http://127.0.0.1:{port}/metrics"
        served = script(check_drift.main, *flags, "--server", address, "--since", earlier)
    cost = told["elbert_reference_computation_cost"]
    assert cost == pytest.approx(reference["computation_cost"])
    shares = [told[f"elbert_reference_exits {layer}"] for layer in range(1, 5)]
    assert shares == pytest.approx(np.array(reference["exits_per_layer"]) / reference["examples"])
    measures = {"exit_layer", "score", "length", "unknown_tokens"}
    assert {f"elbert_drift_psi {measure}" for measure in measures} < told.keys()
    assert {told[f"elbert_drift_alarm {measure}"] for measure in measures} <= {0, 1}
    of_table = script(check_drift.main, *flags, "--input_file", table)
    assert (served.status, served.out) == (of_table.status, of_table.out)
    assert "30 texts against the 10" in served.out
