"""examples/serve.py: a trained model behind HTTP."""

import json
import math
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest
from safetensors.torch import load_file, save_file

import export_onnx
import run_glue
from elbert import Classifier, classify
from tests.conftest import edit_json, sentence

pytestmark = pytest.mark.slow
EXAMPLES = Path(run_glue.__file__).parent / "examples"
LIMIT = 200_000  # bytes of a request
PAIRS = [(sentence(i, 3 + i % 5), sentence(i + 1)) for i in range(24)]


@contextmanager
def serving(*flags: object) -> Iterator[tuple[subprocess.Popen, int]]:
    """A running server with its port; at most 40 texts wait."""
    pytest.importorskip("fastapi")
    command = [sys.executable, EXAMPLES / "serve.py", "--port", 0, *flags]
    command += ["--queue", 40, "--slots", 4, "--max_body_size", LIMIT, "--shutdown_seconds", 5]
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


def get(port: int, path: str) -> tuple[int, str]:
    """The status and answer of a request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def post(port: int, body: object, **headers: str) -> tuple[int, dict]:
    """The status and answer of a request with this JSON, or these bytes."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", "/classify", data, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


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
    pytest.importorskip("fastapi")
    serve = runpy.run_path(str(EXAMPLES / "serve.py"))
    classifier = Classifier(trained)
    runner = serve[kind](classifier, 4, serve["Metrics"](layers=4))
    examples = classifier.encode(PAIRS[:6])
    token_ids, segment_ids = examples[2]
    examples[2] = ([10**6, *token_ids[1:]], segment_ids)
    requests = [serve["Waiting"](example, Future()) for example in examples]
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


def test_under_load_memory_stays_level_and_the_latency_has_the_wait(server):
    """10,000 requests of 1 to 8 texts of 1 to 200 words, 8 at a time."""
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
        if number % 1000 == 999:
            pages.append(int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]))
        return status

    with ThreadPoolExecutor(8) as clients:
        assert set(clients.map(ask, range(10_000))) == {200}
    assert pages[-1] < 1.1 * pages[0]
    assert all(told <= measured for told, measured in seen)
    assert sum(told for told, _ in seen) > 0.5 * sum(measured for _, measured in seen)
    assert health(port) == {"waiting": 0, "running": 0}


def test_what_is_not_installed_is_said_in_a_line():
    code = "import runpy, sys; sys.modules['uvicorn'] = None; runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-c", code, str(EXAMPLES / "serve.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "pip install -r requirements-serve.txt" in done.stderr
    assert len(done.stderr.splitlines()) == 1
