"""Answer texts over HTTP with a trained model; its slots are kept full across requests.

    python examples/serve.py --model_dir out/sst2 --port 8000
    curl localhost:8000/classify --json '{"texts": ["A moving, funny film."]}'

--onnx answers with an ONNX file in place of the model.

POST /classify: one or more texts or pairs of texts. The answer has for each of them the label (or
value), its score, the layer after which it exited, and the milliseconds from the request's arrival,
waiting included; with "top_k" also `classes`, the k likeliest ones, or all for null.
GET /health: how many texts wait and run; 500 when nothing is answered any more.
GET /ready: whether there is room for requests; 503 while there is none, and after SIGTERM.
GET /metrics: requests, texts, seconds, exit layers and computation cost, for Prometheus.

A request of more than --max_body_size bytes or --queue texts is answered with 413, what is no list
of texts with 422, and any request with 503 while --queue texts wait. A text that the model cannot
answer is a 500 for its request alone. SIGTERM and Ctrl-C end the server when it has answered what
it took, but after --shutdown_seconds whatever is still open.

Needs requirements-serve.txt, and for --onnx requirements-onnx.txt.
"""

import asyncio
import os
import queue
import sys
import time
import traceback
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from elbert_base.runtime import keep_freed_memory, spin_environment

os.environ.update(spin_environment())  # before torch is imported

import torch

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.concurrency import run_in_threadpool
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
    )
    from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
except ImportError as missing:
    sys.exit(f"error: {missing}; pip install -r requirements-serve.txt")

from elbert import Classifier, DepthBatcher, EarlyExitModel, UserError
from elbert.configuration import EarlyExitConfig
from elbert.cpu_packing import DTYPES
from runs.flags import AT_LEAST_1, FlagParser
from runs.processes import run_script

Text = str | tuple[str, str]


class Body(BaseModel):
    """Request body of /classify."""

    model_config = ConfigDict(extra="forbid")  # a misspelt key would have no effect

    texts: Annotated[list[Text], Field(min_length=1), FailFast()]
    top_k: Annotated[int, Field(ge=1, strict=True)] | None = 1


class Waiting(NamedTuple):
    """A text, or a window of a long one, on its way to an answer."""

    example: tuple  # as DepthBatcher takes it
    answer: Future  # of its logits, and its depth


class Metrics:
    """What GET /metrics tells, by Prometheus's own client."""

    def __init__(self, layers: int) -> None:
        self.registry = CollectorRegistry()
        self.layers = layers
        self.layer_sum = self.answers = 0
        self.requests = Counter(
            "elbert_requests", "Requests to /classify", ["status"], registry=self.registry
        )
        self.seconds = Histogram(
            "elbert_request_seconds",
            "Seconds from a request to its answer, waiting included",
            registry=self.registry,
        )
        self.texts = Counter("elbert_texts", "Texts answered", registry=self.registry)
        self.errors = Counter(
            "elbert_text_errors", "Texts that the model could not answer", registry=self.registry
        )
        self.exit_layers = Histogram(
            "elbert_exit_layer",
            "Layer after which a text exited",
            buckets=[*map(float, range(1, layers + 1))],
            registry=self.registry,
        )
        self.cost = self.gauge(
            "elbert_computation_cost", "Mean share of layers that ran, since the start"
        )
        self.cost.set_function(self.computation_cost)

    def gauge(self, name: str, meaning: str) -> Gauge:
        """Make a gauge."""
        return Gauge(name, meaning, registry=self.registry)

    def count(self, exit_layer: int) -> None:
        """Count a text, or a window of one, that was answered."""
        self.exit_layers.observe(exit_layer)
        self.layer_sum += exit_layer
        self.answers += 1

    def computation_cost(self) -> float:
        """Return the mean share of layers that ran; NaN before the first answer."""
        return self.layer_sum / (self.layers * self.answers) if self.answers else float("nan")


class Runner:
    """What answers the texts of a queue, with a model or a file; `run` is a thread's work.

    Attributes:
        queue: texts that wait; None is the end.
        running: how many are being answered.
    """

    def __init__(self, classifier: Classifier, slots: int, metrics: Metrics) -> None:
        self.classifier = classifier
        self.num_slots = slots
        self.metrics = metrics
        self.queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()

    @property
    def running(self) -> int:
        raise NotImplementedError

    def run(self) -> None:
        """Answer texts until the end."""
        raise NotImplementedError

    def reply(self, request: Waiting, logits: torch.Tensor, exit_layer: int) -> None:
        """Hand an answer to the request that waits for it."""
        self.metrics.count(exit_layer)
        if request.answer.set_running_or_notify_cancel():  # no client that has gone
            request.answer.set_result((logits, {"exit_layer": exit_layer}))

    def answer_alone(self, requests: list[Waiting]) -> None:
        """Answer texts one by one after one of them, nobody knows which, failed in their midst.

        If the model does not even answer a plain text now, the process ends: a new one may.
        """
        traceback.print_exc()
        try:
            self.classifier("a text")
        except Exception:
            traceback.print_exc()
            os._exit(1)
        for request in requests:
            try:
                with torch.inference_mode():
                    ((logits, depth),) = self.classifier.run([request.example], 1)
            except Exception as error:
                self.metrics.errors.inc()
                if request.answer.set_running_or_notify_cancel():
                    failed = HTTPException(
                        500, f"the model cannot answer this text: {error!r:.200}"
                    )
                    request.answer.set_exception(failed)
            else:
                self.reply(request, logits, int(depth["exit_layer"]))


class SlotRunner(Runner):
    """A model's runner: all texts share one running batch."""

    def __init__(self, classifier: Classifier, slots: int, metrics: Metrics) -> None:
        super().__init__(classifier, slots, metrics)
        self.batcher = QueuedBatcher(self)

    @property
    def running(self) -> int:
        return len(self.batcher.slots)

    def run(self) -> None:
        while not self.batcher.has_ended:
            try:
                for row, logits, exit_layer, _ in self.batcher.answers():
                    self.reply(self.batcher.requests.pop(row), logits, exit_layer)
            except Exception:
                requests = list(self.batcher.requests.values())
                self.batcher = QueuedBatcher(self)
                self.answer_alone(requests)


class QueuedBatcher(DepthBatcher):
    """A batcher that takes its examples from a queue, and waits for some when no slot is taken."""

    def __init__(self, runner: Runner) -> None:
        classifier = runner.classifier
        super().__init__(
            classifier.model, runner.num_slots, pad_token_id=classifier.tokenizer.pad_token_id
        )
        self.queue = runner.queue
        self.requests: dict[int, Waiting] = {}  # by row
        self.has_ended = False

    def fill_slots(self) -> None:
        while len(self.waiting) + len(self.slots) < self.window:
            try:
                request = self.queue.get(block=not self.slots and not self.waiting)
            except queue.Empty:
                break
            if request is None:  # nobody waits for what is left
                self.has_ended = True
                self.waiting, self.running = [], None
                return
            self.requests[self.submitted] = request
            self.submit([request.example])
            super().fill_slots()
        super().fill_slots()


class FileRunner(Runner):
    """An ONNX file's runner: the texts that wait are a batch, which runs to its last exit."""

    batch_size = 0  # of the batch that runs

    @property
    def running(self) -> int:
        return self.batch_size

    def run(self) -> None:
        request = self.queue.get()
        while request is not None:
            batch = [request]
            while len(batch) < self.num_slots and not self.queue.empty():
                request = self.queue.get()
                if request is None:
                    break
                batch.append(request)
            self.batch_size = len(batch)
            self.answer_batch(batch)
            self.batch_size = 0
            request = request and self.queue.get()

    def answer_batch(self, requests: list[Waiting]) -> None:
        """Answer texts together."""
        try:
            with torch.inference_mode():
                outputs = self.classifier.run([x.example for x in requests], len(requests))
        except Exception:
            self.answer_alone(requests)
            return
        for request, (logits, depth) in zip(requests, outputs, strict=True):
            self.reply(request, logits, int(depth["exit_layer"]))


class Server:
    """The HTTP side of a model: tokenises texts and hands them to a `Runner`.

    Args:
        classifier: the model, or its file.
        slots: texts that share a layer pass.
        limit: texts that may wait.
        max_size: bytes of a request.
    """

    def __init__(self, classifier: Classifier, slots: int, limit: int, max_size: int) -> None:
        self.classifier = classifier
        if not isinstance(classifier.config, EarlyExitConfig):
            raise UserError(
                f"{classifier.source}: the server needs a model whose texts exit; in this one, "
                "tokens halt"
            )
        self.limit, self.max_size = limit, max_size
        self.taken = 0  # texts without an answer
        self.metrics = Metrics(classifier.config.num_hidden_layers)
        self.metrics.gauge("elbert_waiting_texts", "Texts that wait").set_function(
            lambda: self.waiting
        )
        self.metrics.gauge("elbert_running_texts", "Texts being answered").set_function(
            lambda: self.runner.running
        )
        is_model = isinstance(classifier.model, EarlyExitModel)
        kind = SlotRunner if is_model else FileRunner
        self.runner = kind(classifier, slots, self.metrics)
        self.thread = Thread(target=self.runner.run, daemon=True)
        self.is_ending = False

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> Any:
        self.thread.start()
        yield
        self.is_ending = True
        self.runner.queue.put(None)
        self.thread.join()

    def windows(self, texts: list[Text]) -> list[list[tuple]]:
        """Turn each text into DepthBatcher's inputs: one, or a long text's windows."""
        if len({isinstance(text, str) for text in texts}) > 1:
            raise HTTPException(422, "texts and pairs of texts: send them in requests of their own")
        try:
            if self.classifier.long_texts == "windows":
                return self.classifier.encode_windows(texts)
            return [[example] for example in self.classifier.encode(texts)]
        except UserError as error:  # such as a pair for a model that has embeddings for one text
            raise HTTPException(422, str(error)) from error

    async def body_of(self, request: Request) -> Body:
        """Read what a request asks for, of any length and kind."""
        data = bytearray()
        try:
            async for part in request.stream():
                data += part
                if len(data) > self.max_size:
                    raise HTTPException(413, f"a request has at most {self.max_size} bytes")
            body = Body.model_validate_json(data)
        except ClientDisconnect as error:
            raise HTTPException(400, "half a request") from error
        except ValidationError as error:
            raise HTTPException(422, what_is_wrong(error)) from error
        if len(body.texts) > self.limit:
            raise HTTPException(413, f"a request has at most {self.limit} texts")
        return body

    async def classify(self, request: Request) -> dict[str, Any]:
        """Answer a request, and count it."""
        start = time.perf_counter()
        status = 500
        try:
            answers = await self.answers(request)
            status = 200
            return {"answers": answers}
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            self.metrics.requests.labels(status).inc()
            self.metrics.seconds.observe(time.perf_counter() - start)

    async def answers(self, request: Request) -> list[Any]:
        """Return the answers to a request's texts, a dict each; HTTPExceptions are for clients."""
        body, arrived = await self.body_of(request), time.perf_counter()
        count = len(body.texts)
        if self.waiting + count > self.limit:
            full = f"{self.waiting} texts wait, of at most {self.limit}: try again later"
            raise HTTPException(503, full, headers={"Retry-After": "1"})
        self.taken += count
        try:
            windows = await run_in_threadpool(self.windows, body.texts)
            all_windows = sum(map(len, windows))
            self.taken += all_windows - count
            count = all_windows
            texts = [self.answer(of_text, arrived, body.top_k) for of_text in windows]
            answers = await asyncio.gather(*texts, return_exceptions=True)
        finally:
            self.taken -= count
        for number, answer in enumerate(answers):
            if isinstance(answer, HTTPException):
                raise HTTPException(answer.status_code, f"text {number}: {answer.detail}")
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def answer(
        self, windows: list[tuple], arrived: float, top_k: int | None
    ) -> dict[str, Any]:
        """Answer a text by its windows: by all, or by the first that is sure, one after another."""
        classifier = self.classifier
        at_a_time = len(windows) if classifier.stop_score is None else 1
        outputs: list[Any] = []
        while len(outputs) < len(windows):
            requests = [Waiting(window, Future()) for window in windows[len(outputs) :][:at_a_time]]
            for request in requests:
                self.runner.queue.put(request)
            futures = [asyncio.wrap_future(request.answer) for request in requests]
            outputs += await asyncio.gather(*futures)
            if classifier.is_sure(outputs[-1]):
                break
        if classifier.long_texts == "windows":
            answer = classifier.combined_answer(windows, outputs, top_k)
        else:
            ((logits, depth),) = outputs
            answer = classifier.answer(logits, depth, top_k)
        self.metrics.texts.inc()
        return {**answer, "milliseconds": round(1e3 * (time.perf_counter() - arrived), 1)}

    @property
    def waiting(self) -> int:
        """Texts that no slot has yet."""
        return max(0, self.taken - self.runner.running)

    async def health(self) -> JSONResponse:
        """Say whether the server lives: whether texts are answered at all."""
        counts = {"waiting": self.waiting, "running": self.runner.running}
        return JSONResponse(counts, 200 if self.thread.is_alive() else 500)

    async def ready(self) -> JSONResponse:
        """Say whether requests should come here: there is room, and the server is not ending."""
        is_ready = self.thread.is_alive() and not self.is_ending and self.waiting < self.limit
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def tell_metrics(self) -> Response:
        """Return the metrics in Prometheus's text format."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def what_is_wrong(error: ValidationError) -> list[dict[str, Any]]:
    """Return the first errors of a body in a few words: its keys may be long, and many."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    return [{**each, "loc": [str(part)[:50] for part in each["loc"]]} for each in errors]


def main() -> None:
    parser = FlagParser(__doc__)
    add = partial(parser.add_argument, metavar="N", type=AT_LEAST_1.reader(int))
    parser.add_argument("--model_dir", type=Path, required=True, help="folder of a trained model")
    parser.add_argument("--onnx", help="ONNX file of the model, which answers in its place")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all")
    parser.add_argument("--port", type=int, metavar="N", default=8000, help="port; 0: any free one")
    add("--slots", default=32, help="number of texts that share a layer pass")
    add("--queue", default=1000, help="largest number of texts that wait")
    add("--max_body_size", default=1_000_000, help="largest size of a request, in bytes")
    add("--shutdown_seconds", default=20, help="time for open requests after SIGTERM, in seconds")
    parser.add_argument(
        "--dtype",
        choices=(*DTYPES, "auto"),
        default="fp32",
        help="number type of the model; auto: bf16 where the processor has instructions for it",
    )
    parser.add_argument(
        "--long_texts",
        choices=("cut", "windows"),
        default="cut",
        help="treatment of texts that are longer than the model reads: cut them, or read all of "
        "them in overlapping windows",
    )
    parser.add_argument(
        "--stop_score",
        type=float,
        help="with --long_texts windows: score from which a window's answer stands for the text",
    )
    args = parser.parse_args()
    keep_freed_memory()
    classifier = Classifier(
        args.model_dir,
        dtype=args.dtype,
        device="cpu" if args.onnx else "auto",
        onnx=args.onnx,
        long_texts=args.long_texts,
        stop_score=args.stop_score,
    )
    server = Server(classifier, args.slots, args.queue, args.max_body_size)
    app = FastAPI(title="Early exit", lifespan=server.lifespan)
    schema = {"content": {"application/json": {"schema": Body.model_json_schema()}}}
    app.post("/classify", openapi_extra={"requestBody": schema})(server.classify)
    app.get("/health")(server.health)
    app.get("/ready")(server.ready)
    app.get("/metrics")(server.tell_metrics)
    uvicorn.run(
        app, host=args.host, port=args.port, timeout_graceful_shutdown=args.shutdown_seconds
    )


if __name__ == "__main__":
    run_script(main)
