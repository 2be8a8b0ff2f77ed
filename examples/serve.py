"""Answer texts over HTTP with a trained model; its slots are kept full across requests.

    python examples/serve.py --model_dir out/demo/RTE --port 8000
    curl localhost:8000/classify --json '{"texts": [["A man runs.", "He ran."]]}'

POST /classify: one or more texts or pairs of texts. The answer has for each of them the label (or
value), its score, the layer after which it exited, and the milliseconds since its arrival. While
--queue texts wait, requests are answered with 503. GET /health: how many texts wait and run.
SIGTERM and Ctrl-C end the server when it has answered what it took.

Needs requirements-serve.txt.
"""

import asyncio
import os
import queue
import sys
import time
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from modeling.runtime import keep_freed_memory, waiting

os.environ.update(waiting())  # before torch is imported

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from evaluation.job import load_finished
from evaluation.modes import trained_mode
from glue.features import Features
from glue.tasks import Example
from modeling import DepthBatcher, EarlyExitModel, UserError, load_tokenizer
from modeling.cpu_packing import packed_weights
from modeling.rules import exit_scores
from utils.files import run_script
from utils.flags import FlagParser

Text = str | tuple[str, str]


class Body(BaseModel):
    """What /classify takes."""

    texts: Annotated[list[Text], Field(min_length=1)]


class Request(NamedTuple):
    """A text on its way to an answer."""

    example: tuple  # as DepthBatcher takes it
    answer: Future
    arrived: float  # seconds, of time.perf_counter


class QueuedBatcher(DepthBatcher):
    """A batcher that takes its examples from a queue, and waits for some when no slot is taken."""

    def __init__(self, model: EarlyExitModel, slots: int, limit: int, pad_token_id: int) -> None:
        super().__init__(model, slots, pad_token_id=pad_token_id)
        self.queue: queue.Queue[Request | None] = queue.Queue(limit)  # None: no more will come
        self.requests: dict[int, Request] = {}  # by row
        self.rows = 0

    def fill_slots(self) -> None:
        while len(self.waiting) + len(self.slots) < self.window:
            try:
                request = self.queue.get(block=not self.slots and not self.waiting)
            except queue.Empty:
                break
            if request is None:
                break
            self.requests[self.rows], self.rows = request, self.rows + 1
            self.submit([request.example])
            super().fill_slots()
        super().fill_slots()

    def run(self) -> None:
        """Answer requests until the queue says that no more will come."""
        labels = self.model.config.id2label
        with packed_weights(self.model):
            for row, logits, exit_layer, _ in self.answers():
                score, number = exit_scores(logits).max(-1)
                request = self.requests.pop(row)
                waited = round(1e3 * (time.perf_counter() - request.arrived), 1)
                answer = {"score": float(score), "exit_layer": exit_layer, "milliseconds": waited}
                if len(logits) > 1:
                    answer = {"label": labels[int(number)], **answer}
                if request.answer.set_running_or_notify_cancel():  # no client that has gone
                    request.answer.set_result(answer)


class Server:
    """The HTTP side of a model: tokenises texts and hands them to a `QueuedBatcher`."""

    def __init__(self, model_dir: Path, slots: int, limit: int) -> None:
        self.mode = trained_mode(model_dir)
        model, self.tokenizer = load_finished(model_dir, self.mode), load_tokenizer(model_dir)
        if not isinstance(model, EarlyExitModel):
            raise UserError(f"{model_dir}: in this model tokens halt, not texts")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model, pad = model.to(device), self.tokenizer.pad_token_id
        self.batcher = QueuedBatcher(self.model, slots, limit, pad)
        self.thread = Thread(target=self.batcher.run, daemon=True)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> Any:
        self.thread.start()
        yield
        self.batcher.queue.put(None)
        self.thread.join()

    def features(self, texts: list[Text]) -> Features:
        config = self.model.config
        length = min(512, config.max_position_embeddings)
        parts = [(text, None) if isinstance(text, str) else text for text in texts]
        if len({second is None for _, second in parts}) > 1:
            raise HTTPException(422, "texts and pairs of texts: send them in requests of their own")
        examples = [Example("", first, second, None) for first, second in parts]
        return self.mode.features(config, examples, self.tokenizer, length, seed=time.time_ns())

    async def classify(self, body: Body) -> dict[str, Any]:
        arrived, waiting = time.perf_counter(), self.health()["waiting"]
        if not self.thread.is_alive():
            raise HTTPException(500, "the model's thread has ended: see the server's log")
        if waiting + len(body.texts) > self.batcher.queue.maxsize:
            full = f"{waiting} texts wait, of at most {self.batcher.queue.maxsize}: try again later"
            raise HTTPException(503, full, headers={"Retry-After": "1"})
        features = self.features(body.texts)
        own = (features.inputs[name] for name in self.model.own_inputs if name in features.inputs)
        futures = []
        for example in zip(features.input_ids, features.token_type_ids, *own, strict=True):
            futures.append(Future())
            self.batcher.queue.put_nowait(Request(example, futures[-1], arrived))
        return {"answers": await asyncio.gather(*map(asyncio.wrap_future, futures))}

    def health(self) -> dict[str, int]:
        batcher = self.batcher
        taken, running = len(batcher.requests), len(batcher.slots)
        return {"waiting": batcher.queue.qsize() + max(0, taken - running), "running": running}


def main() -> None:
    parser = FlagParser(__doc__)
    add = partial(parser.add_argument, metavar="N", type=int)
    parser.add_argument("--model_dir", type=Path, required=True, help="folder of a trained model")
    parser.add_argument("--host", default="127.0.0.1", help="this machine alone; 0.0.0.0: all")
    add("--port", default=8000, help="0: any free one")
    add("--slots", default=32, help="texts that share a layer pass")
    add("--queue", default=1000, help="texts that may wait")
    args = parser.parse_args()
    keep_freed_memory()
    server = Server(args.model_dir, args.slots, args.queue)
    app = FastAPI(title="Early exit", lifespan=server.lifespan)
    app.post("/classify")(server.classify)
    app.get("/health")(server.health)
    uvicorn.run(app, host=args.host, port=args.port)


if __name__ == "__main__":
    run_script(main)
