"""All routes of a server, and the process that serves them."""

from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from elbert import __version__

from .classify_route import ClassifyBody, ClassifyRoute
from .inference_protocol import VERSION, InferBody, InferenceRoute
from .predict_route import PredictBody, PredictRoute
from .server import Server


def make_app(server: Server, model_name: str, origins: Sequence[str] = ()) -> FastAPI:
    """Make the application of a server.

    Args:
        model_name: the model's in the Open Inference Protocol.
        origins: of web pages that may ask, as browsers name them; * for all.
    """
    app: FastAPI = FastAPIOffline(title="Early exit", lifespan=server.lifespan)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    for path, tell in (
        ("/", server.health),  # where balancers ask by default
        ("/health", server.health),
        ("/ready", server.ready),
        ("/metrics", server.tell_metrics),
    ):
        add_get(app, path, tell)
    ask = partial(add_post, app, server)
    ask("/classify", ClassifyRoute(), ClassifyBody)
    predict = PredictRoute(server.classifier.tokenizer.truncation_side)
    ask("/predict", predict, PredictBody)
    ask("/", predict, PredictBody)  # where a client of the hub's asks that is given the address
    add_inference_protocol(app, server, model_name)
    add_options(app)
    return app


def add_get(app: FastAPI, path: str, tell: Any) -> None:
    """Answer GET, and HEAD as balancers send it."""
    app.get(path)(tell)
    app.head(path, include_in_schema=False)(tell)


def add_post(
    app: FastAPI, server: Server, path: str, route: ClassifyRoute | PredictRoute, body: type
) -> None:
    """Let clients ask by POST; body: a model of pydantic's, for /docs."""

    async def ask(request: Request) -> Response:
        return await server.ask(route, request)

    app.post(path, name=f"POST {path}", openapi_extra=body_schema(path, body))(ask)


def body_schema(path: str, body: type[BaseModel]) -> dict[str, Any]:
    """Describe the body of a request to `path` for /docs."""
    # The parts of a body stand within its schema: a reference leads there from the document's root.
    place = quote(path.replace("/", "~1"))
    within = f"#/paths/{place}/post/requestBody/content/application~1json/schema/$defs"
    schema = body.model_json_schema(ref_template=within + "/{model}")
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def add_inference_protocol(app: FastAPI, server: Server, model_name: str) -> None:
    """Add the routes of the Open Inference Protocol."""
    platform = "onnxruntime" if server.classifier.onnx else "pytorch"
    route = InferenceRoute(model_name, server.classifier.config, platform)

    async def about_server() -> dict[str, Any]:
        return {"name": "elbert", "version": __version__, "extensions": ["binary_tensor_data"]}

    async def live() -> JSONResponse:
        is_live = server.thread.is_alive()
        return JSONResponse({"live": is_live}, 200 if is_live else 500)

    async def about_model(name: str, version: str = VERSION) -> dict[str, Any]:
        route.check_model(name, version)
        return route.metadata()

    async def model_ready(name: str, version: str = VERSION) -> JSONResponse:
        route.check_model(name, version)
        content = {"name": name, "ready": server.is_ready}
        return JSONResponse(content, 200 if server.is_ready else 503)

    async def infer(request: Request, name: str, version: str = VERSION) -> Response:
        route.check_model(name, version)
        return await server.ask(route, request)

    async def refuse(request: Request, error: Any) -> Response:
        is_protocol = request.url.path.startswith("/v2")
        return (route if is_protocol else ClassifyRoute()).refuse(error)

    add_get(app, "/v2", about_server)
    add_get(app, "/v2/health/live", live)
    add_get(app, "/v2/health/ready", server.ready)
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        add_get(app, path, about_model)
        add_get(app, f"{path}/ready", model_ready)
        infer_path = f"{path}/infer"
        app.post(infer_path, openapi_extra=body_schema(infer_path, InferBody))(infer)
    app.exception_handler(StarletteHTTPException)(refuse)  # of paths and methods, too


def add_options(app: FastAPI) -> None:
    """Answer OPTIONS for every path: which methods it has."""
    methods: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, APIRoute):
            methods.setdefault(route.path, {"OPTIONS"}).update(route.methods)
    for path, allowed in methods.items():
        app.options(path, include_in_schema=False)(tell_methods(sorted(allowed)))


def tell_methods(methods: Sequence[str]) -> Any:
    """Make what answers OPTIONS for a path with these methods."""

    async def tell() -> Response:
        return Response(status_code=204, headers={"Allow": ", ".join(methods)})

    return tell


class Process(uvicorn.Server):
    """The process of a server, in which a signal to end also ends what is open.

    uvicorn itself waits for open requests, and drops their connections when the time is over.
    """

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self.server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.server.begin_ending()
        super().handle_exit(sig, frame)


def serve(app: FastAPI, server: Server, host: str, port: int, keep_alive_seconds: int) -> None:
    """Answer requests until a signal ends the process."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        timeout_keep_alive=keep_alive_seconds,
        # For clients that do not even read that the server is ending.
        timeout_graceful_shutdown=server.limits.shutdown_seconds + 1,
    )
    Process(config, server).run()
