"""examples/serve.py and ray_predict.py: a trained model behind HTTP, and on Ray."""

import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

import run_glue
from modeling import classify
from tests.conftest import sentence

pytestmark = pytest.mark.slow
EXAMPLES = Path(run_glue.__file__).parent / "examples"
PAIRS = [(sentence(i, 3 + i % 5), sentence(i + 1)) for i in range(24)]


@pytest.fixture
def server(trained):
    """A running server of `trained`, with its port; at most 40 texts wait."""
    pytest.importorskip("fastapi")
    command = [sys.executable, EXAMPLES / "serve.py", "--model_dir", trained, "--port", 0]
    command += ["--queue", 40, "--slots", 4]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if found := re.search(r"running on http://127.0.0.1:(\d+)", line):
            yield process, int(found[1])
            break
    else:
        raise AssertionError("the server did not start")
    process.kill()
    process.communicate()


def post(port: int, body: object) -> tuple[int, dict]:
    """The status and answer of a request with this JSON."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/classify", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def health(port: int) -> dict:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/health")
    return json.loads(connection.getresponse().read())


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
        assert post(port, {"texts": PAIRS * 2})[0] == 503
        assert post(port, {"texts": []})[0] == 422
        assert post(port, {"texts": ["alone", PAIRS[0]]})[0] == 422
        last = clients.submit(post, port, {"texts": PAIRS})
        while health(port)["running"] == 0 and not last.done():
            pass
        process.send_signal(signal.SIGTERM)
        status, answer = last.result()
    assert (status, len(answer["answers"])) == (200, len(PAIRS))
    assert "Finished server process" in process.communicate(timeout=30)[1]


def test_actors_on_ray_answer_as_classify(trained, tmp_path):
    pytest.importorskip("ray")
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "texts").mkdir()
    for part in (0, 1):  # one for each of two actors
        first, second = zip(*PAIRS[part::2], strict=True)
        numbers = list(range(part, len(PAIRS), 2))
        table = pa.table({"number": numbers, "sentence1": first, "sentence2": second})
        parquet.write_table(table, tmp_path / f"texts/{part}.parquet")
    command = [sys.executable, EXAMPLES / "ray_predict.py", "--model_dir", trained]
    command += ["--input", tmp_path / "texts", "--output", tmp_path / "answers", "--actors", 2]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = parquet.read_table(tmp_path / "answers").sort_by("number").to_pylist()
    for row, pair, wanted in zip(found, PAIRS, classify(trained, PAIRS), strict=True):
        assert (row["sentence1"], row["sentence2"]) == pair
        assert (row["label"], row["exit_layer"]) == (wanted["label"], wanted["exit_layer"])
