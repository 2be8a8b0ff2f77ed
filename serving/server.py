"""Requests in, answers out: what is read and refused, who waits, clients that go, and the end."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import torch
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from elbert import Classifier, EarlyExitModel, UserError
from elbert.classifier import Answer
from evaluation.drift import read_reference
from modeling.configuration import EarlyExitConfig

from .metrics import Metrics
from .questions import Question, Route, what_is_wrong
from .runners import FileRunner, SlotRunner, Waiting

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

CLIENT_GONE = 499  # nginx's status for it
ENDING = "the server is ending: ask another one"
FUNCTIONS = {
    "none": lambda logits: logits,
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
}
THREAD_SECONDS = 5  # that a batch of an ONNX file, which cannot be stopped, has at the end


@dataclass(frozen=True)
class Limits:
    """What a server takes.

    Attributes:
        slots: texts that share a layer pass.
        waiting: texts that may wait.
        body_size: bytes of a request.
        shutdown_seconds: time for open requests after a signal to end.
    """

    slots: int
    waiting: int
    body_size: int
    shutdown_seconds: int


class Server:
    """The HTTP side of a model: tokenises texts and hands them to a `Runner`.

    classifier: the model, or its file.

    Raises UserError for a model in which tokens halt.
    """

    def __init__(self, classifier: Classifier, limits: Limits) -> None:
        self.classifier = classifier
        if not isinstance(classifier.config, EarlyExitConfig):
            raise UserError(
                f"{classifier.source}: the server needs a model whose texts exit; in this one, "
                "tokens halt"
            )
        self.limits = limits
        self.taken = 0  # texts without an answer
        self.metrics = Metrics(classifier.config.num_hidden_layers)
        self.compare_with_reference()
        self.metrics.gauge("elbert_waiting_texts", "Texts that wait").set_function(
            lambda: self.waiting
        )
        self.metrics.gauge("elbert_running_texts", "Texts being answered").set_function(
            lambda: self.runner.running
        )
        is_model = isinstance(classifier.model, EarlyExitModel)
        kind = SlotRunner if is_model else FileRunner
        self.runner = kind(classifier, limits.slots, self.metrics)
        self.thread = Thread(target=self.runner.run, daemon=True)
        self.open_work: set[asyncio.Task] = set()  # of requests that are read or answered
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_ending = False

    def compare_with_reference(self) -> None:
        """Let the metrics tell drift, where the model's folder has a reference."""
        folder = Path(self.classifier.source)
        if folder.is_dir():
            try:
                reference = read_reference(folder, self.classifier.config)
                self.metrics.compare_with(self.classifier, reference)
            except UserError as error:
                logger.info("/metrics does not tell drift: %s", error)

    # The life of the server.

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> Any:
        """Start the runner's thread, and end it."""
        self.loop = asyncio.get_running_loop()
        self.thread.start()
        yield
        self.is_ending = True
        self.runner.queue.put(None)
        self.thread.join(THREAD_SECONDS)

    def begin_ending(self) -> None:
        """Give the open requests --shutdown_seconds from now on; called by a signal's handler."""
        if self.is_ending or self.loop is None:
            return
        self.is_ending = True
        seconds = self.limits.shutdown_seconds
        self.loop.call_soon_threadsafe(self.loop.call_later, seconds, self.drop_open_work)

    def drop_open_work(self) -> None:
        """Let all open requests be answered with 503, and what they wait for be dropped."""
        for task in list(self.open_work):
            task.cancel()

    # Requests.

    async def ask(self, route: Route, request: Request) -> Response:
        """Answer a request, and count it."""
        start = time.perf_counter()
        status = 500
        try:
            body = await self.unless_dropped(self.body_of(request))
            question = read_question(route, body, request)
            answers = await self.unless_dropped(self.answers(question), request)
            response = route.write(question, answers)
            status = 200
        except HTTPException as error:
            status = error.status_code
            response = route.refuse(error)
        finally:
            self.metrics.requests.labels(status).inc()
            if status != CLIENT_GONE:  # nobody got an answer
                self.metrics.seconds.observe(time.perf_counter() - start)
        return response

    async def unless_dropped(
        self, work: Coroutine[Any, Any, ResultT], request: Request | None = None
    ) -> ResultT:
        """Do some work while its client waits for it, and the server has time.

        request: of the client, when its body has been read.

        Raises HTTPException with status 499 or 503; the work is then cancelled.
        """
        task = asyncio.ensure_future(work)
        self.open_work.add(task)
        watched: set[asyncio.Future] = {task}
        if request:
            watched.add(asyncio.ensure_future(until_gone(request)))
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise HTTPException(CLIENT_GONE, "the client has gone")
            if task.cancelled():
                raise HTTPException(503, ENDING)
            return task.result()
        finally:
            self.open_work.discard(task)
            for each in watched:
                each.cancel()

    async def body_of(self, request: Request) -> bytes:
        """Read a request's body, of any length."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise HTTPException(415, f"content-encoding {encoding[:50]}: send the body as it is")
        data = bytearray()
        try:
            async for part in request.stream():
                data += part
                if len(data) > self.limits.body_size:
                    most = self.limits.body_size
                    raise HTTPException(413, f"a request has at most {most} bytes")
        except ClientDisconnect as error:
            raise HTTPException(CLIENT_GONE, "half a request") from error
        return bytes(data)

    async def answers(self, question: Question) -> list[Answer]:
        """Return the answers to a question's texts; HTTPExceptions are for clients."""
        arrived = time.perf_counter()
        count = len(question.texts)
        self.check_room(count)
        self.taken += count
        try:
            windows = await run_in_threadpool(self.windows, question)
            all_windows = sum(map(len, windows))
            self.taken += all_windows - count
            count = all_windows
            texts = [self.answer(of_text, arrived, question) for of_text in windows]
            answers = await asyncio.gather(*texts, return_exceptions=True)
        finally:
            self.taken -= count
        for number, answer in enumerate(answers):
            if isinstance(answer, HTTPException):
                raise HTTPException(answer.status_code, f"text {number}: {answer.detail}")
        return [raised(answer) for answer in answers]

    def check_room(self, count: int) -> None:
        """Raise HTTPException where so many texts are too many, or too many now."""
        most = self.limits.waiting
        if count > most:
            raise HTTPException(413, f"a request has at most {most} texts")
        if self.waiting + count > most:
            full = f"{self.waiting} texts wait, of at most {most}: try again later"
            raise HTTPException(503, full, headers={"Retry-After": "1"})

    def windows(self, question: Question) -> list[list[tuple]]:
        """Turn each text into DepthBatcher's inputs: one, or a long text's windows."""
        try:
            if self.long_texts(question) == "cut":
                return [[example] for example in self.classifier.encode(question.texts)]
            windows = self.classifier.encode_windows(list(question.texts))
        except UserError as error:  # such as a pair for a model that has embeddings for one text
            raise HTTPException(422, str(error)) from error
        if question.long_texts == "refuse":
            for number, of_text in enumerate(windows):
                if len(of_text) > 1:
                    most = self.classifier.max_length
                    raise HTTPException(413, f"text {number} has more than {most} tokens")
        return windows

    def long_texts(self, question: Question) -> str:
        """Return the treatment of a question's long texts."""
        return question.long_texts or self.classifier.long_texts

    async def answer(self, windows: list[tuple], arrived: float, question: Question) -> Answer:
        """Answer a text by its windows: by all, or by the first that is sure, one after another."""
        classifier = self.classifier
        at_a_time = len(windows) if classifier.stop_score is None else 1
        outputs: list[Any] = []
        while len(outputs) < len(windows):
            outputs += await self.run(windows[len(outputs) :][:at_a_time])
            if classifier.is_sure(outputs[-1]):
                break
        try:
            answer = self.tell(windows, outputs, question)
        except UserError as error:  # of logits that are not finite
            raise HTTPException(500, str(error)) from error
        self.metrics.texts.inc()
        return {**answer, "milliseconds": round(1e3 * (time.perf_counter() - arrived), 1)}

    async def run(self, windows: list[tuple]) -> list[Any]:
        """Let the runner answer windows; whoever cancels this takes them out of its queue."""
        requests = [Waiting(window, Future()) for window in windows]
        for request in requests:
            self.runner.queue.put(request)
        try:
            return await asyncio.gather(
                *(asyncio.wrap_future(request.answer) for request in requests)
            )
        except asyncio.CancelledError:
            for request in requests:
                request.answer.cancel()
            self.runner.has_dropped = True
            raise

    def tell(self, windows: list[tuple], outputs: list[Any], question: Question) -> Answer:
        """Say what the outputs of a text's windows mean.

        Raises UserError for logits that are not finite.
        """
        if self.long_texts(question) == "windows":
            if question.function:
                raise HTTPException(422, "scores of another kind: not with --long_texts windows")
            return self.classifier.combined_answer(windows, outputs, question.top_k)
        ((logits, depth),) = outputs
        scores = self.classifier.scores(logits)
        if question.function:
            scores = FUNCTIONS[question.function](logits.float())
        return self.classifier.answer_of(scores, depth, question.top_k)

    # What it tells of itself.

    @property
    def waiting(self) -> int:
        """Texts that no slot has yet."""
        return max(0, self.taken - self.runner.running)

    @property
    def is_ready(self) -> bool:
        """Whether requests should come here: there is room, and the server is not ending."""
        has_room = self.waiting < self.limits.waiting
        return self.thread.is_alive() and not self.is_ending and has_room

    async def health(self) -> JSONResponse:
        """Say whether the server lives: whether texts are answered at all."""
        counts = {"waiting": self.waiting, "running": self.runner.running}
        return JSONResponse(counts, 200 if self.thread.is_alive() else 500)

    async def ready(self) -> JSONResponse:
        """Say whether requests should come here."""
        return JSONResponse({"ready": self.is_ready}, 200 if self.is_ready else 503)

    async def tell_metrics(self) -> Response:
        """Return the metrics in Prometheus's text format."""
        self.metrics.update()
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def read_question(route: Route, body: bytes, request: Request) -> Question:
    """Read a body by its route; raises HTTPException for what is wrong with it."""
    try:
        return route.read(body, request.headers)
    except ValidationError as error:
        raise HTTPException(422, what_is_wrong(error)) from error


async def until_gone(request: Request) -> None:
    """Wait until a client, whose request has been read, hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def raised(answer: Answer | BaseException) -> Answer:
    """Return an answer, or raise it."""
    if isinstance(answer, BaseException):
        raise answer
    return answer
