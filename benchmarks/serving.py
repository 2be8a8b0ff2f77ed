"""Requests a second over HTTP, and how long they take: examples/serve.py beside plain FastAPI.

    OMP_NUM_THREADS=2 python benchmarks/serving.py --model_dir out/reviews/model --encoder $M \\
      --texts texts.txt

Each client sends one text of --texts (a text a line), waits for the answer, and sends the next. The
plain server calls HF's pipeline in FastAPI's threads, on --encoder, an encoder as deep and without
exits; its classifier is new, for speed alone. Ours answers with the model and with its ONNX file.
Servers and clients share the processors; the servers take turns. Needs requirements/serve.txt and
requirements/onnx.txt.
"""

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.contenders import processor_flags
from modeling.runtime import environment
from runs.console import markdown_table
from runs.flags import FlagParser
from runs.processes import ROOT, run_script

QUANTILES = (0.5, 0.95, 0.99)  # of a request's time
PLAIN = """
import sys, uvicorn
from fastapi import FastAPI
from transformers import pipeline

classifier, app = pipeline("text-classification", sys.argv[1]), FastAPI()

@app.post("/classify")
def classify(body: dict[str, list[str]]) -> list:
    return classifier(body["texts"], truncation=True)

uvicorn.run(app, port=0)
"""


class Round(NamedTuple):
    """A round of one server and number of clients."""

    seconds: np.ndarray  # of each request
    rate: float  # requests a second


@contextmanager
def port_of(*command: str) -> Iterator[int]:
    """Start a server; give its port when it answers."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *command], **streams) as server:
        log = (re.search(r"running on \S+:(\d+)", line) for line in server.stderr)
        yield int(next(filter(None, log))[1])
        server.kill()


def ask(port: int, texts: Iterator[str], end: float) -> list[float]:
    """Send texts, as one client, until `end`; return the seconds of each request."""
    connection, seconds = HTTPConnection("127.0.0.1", port), []
    while (start := time.perf_counter()) < end:
        body = json.dumps({"texts": [next(texts)]})
        connection.request("POST", "/classify", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="folder of a trained model, for our server")
    add("--encoder", required=True, help="folder or hub name of the encoder, for HF's pipeline")
    add("--texts", type=Path, required=True, help="a file with a text a line")
    add("--onnx", default="classifier-int8.onnx", help="file in the folder; '' for none")
    add("--seconds", type=float, default=5, help="how long a round lasts for each server")
    add("--rounds", type=int, default=10)
    args = parser.parse_args()
    texts = itertools.cycle(args.texts.read_text("utf-8").splitlines())
    ours = [str(ROOT / "examples/serve.py"), "--port", "0", "--model_dir", str(args.model_dir)]
    commands = {"HF's pipeline": ["-c", PLAIN, args.encoder], "examples/serve.py": ours}
    if args.onnx:
        commands[f"examples/serve.py --onnx {args.onnx}"] = [*ours, "--onnx", args.onnx]
    found: dict[tuple[int, str], list[Round]] = {}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(port_of(*words)) for name, words in commands.items()}
        for port in servers.values():
            ask(port, texts, time.perf_counter() + 2)  # warms caches
        for _, clients, name in itertools.product(range(args.rounds), (1, 8, 64), servers):
            start = time.perf_counter()
            end = start + args.seconds
            with ThreadPoolExecutor(clients) as pool:
                answers = [pool.submit(ask, servers[name], texts, end) for _ in range(clients)]
            seconds = np.concatenate([answer.result() for answer in answers])
            # Until the last answer: those under way at the end are counted as well.
            found.setdefault((clients, name), []).append(
                Round(seconds, rate=len(seconds) / (time.perf_counter() - start))
            )
    print(", ".join(environment(torch.device("cpu")).values()))
    print(f"flags: {processor_flags()}\n")
    rows = []
    for (clients, name), rounds in sorted(found.items(), key=lambda item: item[0][0]):
        rates = [one_round.rate for one_round in rounds]
        rate = f"{np.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})"
        took = np.quantile(np.concatenate([one_round.seconds for one_round in rounds]), QUANTILES)
        rows.append([clients, name, rate, *(f"{1000 * seconds:.0f}" for seconds in took)])
    columns = ["clients", "server", "requests / s: median (range)"]
    columns += [f"p{100 * quantile:.0f}, ms" for quantile in QUANTILES]
    print(markdown_table(columns, rows))


if __name__ == "__main__":
    run_script(main)
