"""Texts of a queue, answered in a thread: by a model whose slots are kept full, or by a file."""

import os
import queue
import traceback
from concurrent.futures import Future
from typing import NamedTuple

import torch
from fastapi import HTTPException

from elbert import Classifier, DepthBatcher

from .metrics import Metrics


class Waiting(NamedTuple):
    """A text, or a window of a long one, on its way to an answer."""

    example: tuple  # as DepthBatcher takes it
    answer: Future  # of its logits, and its depth; cancelled where nobody waits for it any more


class Runner:
    """What answers the texts of a queue; `run` is a thread's work.

    Attributes:
        queue: texts that wait; None is the end.
        running: how many are being answered.
        has_dropped: whether answers were cancelled since the runner last looked.
    """

    def __init__(self, classifier: Classifier, slots: int, metrics: Metrics) -> None:
        self.classifier = classifier
        self.num_slots = slots
        self.metrics = metrics
        self.queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self.has_dropped = False

    @property
    def running(self) -> int:
        raise NotImplementedError

    def run(self) -> None:
        """Answer texts until the end."""
        raise NotImplementedError

    def reply(self, request: Waiting, logits: torch.Tensor, exit_layer: int) -> None:
        """Hand an answer to the request that waits for it."""
        if request.answer.set_running_or_notify_cancel():  # no client that has gone
            self.metrics.count(logits, request.example[0], exit_layer)
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
            if request.answer.cancelled():
                continue
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
                has_ended = self.batcher.has_ended
                self.batcher = QueuedBatcher(self)
                self.batcher.has_ended = has_ended
                self.answer_alone(requests)


class QueuedBatcher(DepthBatcher):
    """A batcher that takes its examples from a queue, and waits for some when no slot is taken."""

    def __init__(self, runner: Runner) -> None:
        classifier = runner.classifier
        super().__init__(
            classifier.model, runner.num_slots, pad_token_id=classifier.tokenizer.pad_token_id
        )
        self.runner = runner
        self.requests: dict[int, Waiting] = {}  # by row
        self.has_ended = False

    def fill_slots(self) -> None:
        if self.has_ended:
            return
        if self.runner.has_dropped:
            self.drop_cancelled()
        while len(self.waiting) + len(self.slots) < self.window:
            try:
                request = self.runner.queue.get(block=self.is_idle)
            except queue.Empty:
                break
            if request is None:  # nobody waits for what is left
                self.has_ended = True
                self.waiting, self.running = [], None
                return
            if request.answer.cancelled():
                continue
            self.requests[self.submitted] = request
            self.submit([request.example])
            self.read_ahead()
            super().fill_slots()
        super().fill_slots()

    def drop_cancelled(self) -> None:
        """Drop the texts for whose answers nobody waits any more, also from the slots."""
        self.runner.has_dropped = False  # before looking: another may be cancelled meanwhile
        rows = [row for row, request in self.requests.items() if request.answer.cancelled()]
        self.drop(set(rows))
        for row in rows:
            del self.requests[row]


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
            self.answer_batch([each for each in batch if not each.answer.cancelled()])
            request = request and self.queue.get()

    def answer_batch(self, requests: list[Waiting]) -> None:
        """Answer texts together."""
        if not requests:
            return
        self.batch_size = len(requests)
        try:
            with torch.inference_mode():
                outputs = self.classifier.run([x.example for x in requests], len(requests))
        except Exception:
            self.answer_alone(requests)
        else:
            for request, (logits, depth) in zip(requests, outputs, strict=True):
                self.reply(request, logits, int(depth["exit_layer"]))
        self.batch_size = 0
