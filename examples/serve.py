"""Answer texts over HTTP with a trained model; its slots are kept full across requests.

    python examples/serve.py --model_dir out/sst2 --port 8000
    curl localhost:8000/classify --json '{"texts": ["A moving, funny film."]}'

POST /classify: one or more texts or pairs of texts. The answer has for each of them the label (or
value), its score, the layer after which it exited, and the milliseconds from the request's arrival,
waiting included. GET /health: how many texts wait and run.

A request of more than --max_body_size bytes or --queue texts is answered with 413, what is no list
of texts with 422, and any request with 503 while --queue texts wait. SIGTERM and Ctrl-C end the
server when it has answered what it took, but after --shutdown_seconds whatever is still open.

Needs requirements-serve.txt.
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
    from pydantic import BaseModel, FailFast, Field, ValidationError
    from starlette.requests import ClientDisconnect
except ImportError as missing:
    sys.exit(f"error: {missing}; pip install -r requirements-serve.txt")

from elbert import Classifier, DepthBatcher, EarlyExitModel, UserError
from elbert.cpu_packing import DTYPES
from runs.flags import AT_LEAST_1, FlagParser
from runs.processes import run_script

Text = str | tuple[str, str]


class Body(BaseModel):
    """Request body of /classify."""

    texts: Annotated[list[Text], Field(min_length=1), FailFast()]


class Waiting(NamedTuple):
    """A text on its way to an answer."""

    example: tuple  # as DepthBatcher takes it
    answer: Future
    arrived: float  # seconds, of time.perf_counter


class QueuedBatcher(DepthBatcher):
    """A batcher that takes its examples from a queue, and waits for some when no slot is taken."""

    def __init__(self, classifier: Classifier, slots: int) -> None:
        super().__init__(classifier.model, slots, pad_token_id=classifier.tokenizer.pad_token_id)
        self.classifier = classifier
        self.queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()  # None: the end
        self.requests: dict[int, Waiting] = {}  # by row

    def fill_slots(self) -> None:
        while len(self.waiting) + len(self.slots) < self.window:
            try:
                request = self.queue.get(block=not self.slots and not self.waiting)
            except queue.Empty:
                break
            if request is None:  # nobody waits for what is left
                self.waiting, self.running = [], None
                return
            self.requests[self.submitted] = request
            self.submit([request.example])
            super().fill_slots()
        super().fill_slots()

    def run(self) -> None:
        """Answer requests until the end; an error ends the process, since nobody would answer."""
        try:
            for row, logits, exit_layer, _ in self.answers():
                self.reply(self.requests.pop(row), logits, exit_layer)
        except Exception:
            traceback.print_exc()
            os._exit(1)

    def reply(self, request: Waiting, logits: torch.Tensor, exit_layer: int) -> None:
        waited = round(1e3 * (time.perf_counter() - request.arrived), 1)
        depth = {"exit_layer": exit_layer, "milliseconds": waited}
        if request.answer.set_running_or_notify_cancel():  # no client that has gone
            request.answer.set_result(self.classifier.answer(logits, depth, top_k=1))


class Server:
    """The HTTP side of a model: tokenises texts and hands them to a `QueuedBatcher`."""

    def __init__(
        self, model_dir: Path, slots: int, limit: int, max_size: int, dtype: str = "fp32"
    ) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.classifier = Classifier(model_dir, dtype=dtype, device=device)
        if not isinstance(self.classifier.model, EarlyExitModel):
            raise UserError(f"{model_dir}: in this model tokens halt, not texts")
        self.limit, self.max_size = limit, max_size  # texts that may wait; bytes of a request
        self.taken = 0  # texts without an answer
        self.batcher = QueuedBatcher(self.classifier, slots)
        self.thread = Thread(target=self.batcher.run, daemon=True)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> Any:
        self.thread.start()
        yield
        self.batcher.queue.put(None)
        self.thread.join()

    def examples(self, texts: list[Text]) -> list[tuple]:
        """Turn texts into DepthBatcher's inputs."""
        if len({isinstance(text, str) for text in texts}) > 1:
            raise HTTPException(422, "texts and pairs of texts: send them in requests of their own")
        return self.classifier.encode(texts)

    async def texts_of(self, request: Request) -> list[Text]:
        """Read what a request asks for, of any length and kind."""
        data = bytearray()
        try:
            async for part in request.stream():
                data += part
                if len(data) > self.max_size:
                    raise HTTPException(413, f"a request has at most {self.max_size} bytes")
            texts = Body.model_validate_json(data).texts
        except ClientDisconnect as error:
            raise HTTPException(400, "half a request") from error
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False, include_input=False)
            raise HTTPException(422, wrong) from error
        if len(texts) > self.limit:
            raise HTTPException(413, f"a request has at most {self.limit} texts")
        return texts

    async def classify(self, request: Request) -> dict[str, Any]:
        texts, arrived = await self.texts_of(request), time.perf_counter()
        if self.waiting + (count := len(texts)) > self.limit:
            full = f"{self.waiting} texts wait, of at most {self.limit}: try again later"
            raise HTTPException(503, full, headers={"Retry-After": "1"})
        self.taken += count
        try:
            examples = await run_in_threadpool(self.examples, texts)
            requests = [Waiting(example, Future(), arrived) for example in examples]
            for request in requests:
                self.batcher.queue.put(request)
            answers = (asyncio.wrap_future(request.answer) for request in requests)
            return {"answers": await asyncio.gather(*answers)}
        finally:
            self.taken -= count

    @property
    def waiting(self) -> int:
        """Texts that no slot has yet."""
        return max(0, self.taken - len(self.batcher.slots))

    async def health(self) -> dict[str, int]:
        return {"waiting": self.waiting, "running": len(self.batcher.slots)}


def main() -> None:
    parser = FlagParser(__doc__)
    add = partial(parser.add_argument, metavar="N", type=AT_LEAST_1.reader(int))
    parser.add_argument("--model_dir", type=Path, required=True, help="folder of a trained model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all")
    parser.add_argument("--port", type=int, metavar="N", default=8000, help="port; 0: any free one")
    add("--slots", default=32, help="texts that share a layer pass")
    add("--queue", default=1000, help="most texts that wait")
    add("--max_body_size", default=1_000_000, help="most bytes in a request")
    add("--shutdown_seconds", default=20, help="seconds for open requests after SIGTERM")
    parser.add_argument(
        "--dtype",
        choices=(*DTYPES, "auto"),
        default="fp32",
        help="auto: bf16 where the processor has it",
    )
    args = parser.parse_args()
    keep_freed_memory()
    server = Server(args.model_dir, args.slots, args.queue, args.max_body_size, args.dtype)
    app = FastAPI(title="Early exit", lifespan=server.lifespan)
    schema = {"content": {"application/json": {"schema": Body.model_json_schema()}}}
    app.post("/classify", openapi_extra={"requestBody": schema})(server.classify)
    app.get("/health")(server.health)
    uvicorn.run(
        app, host=args.host, port=args.port, timeout_graceful_shutdown=args.shutdown_seconds
    )


if __name__ == "__main__":
    run_script(main)
