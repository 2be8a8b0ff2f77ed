"""POST /classify, the server's own way to ask."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import HTTPException
from pydantic import FailFast, Field
from starlette.responses import JSONResponse, Response

from elbert.classifier import Answer

from .questions import Question, Strict, TextDict


class ClassifyBody(Strict):
    """Texts or pairs of texts, and the number of classes to list; null lists all."""

    texts: Annotated[list[str | tuple[str, str] | TextDict], Field(min_length=1), FailFast()]
    top_k: Annotated[int, Field(ge=1, strict=True)] | None = 1


class ClassifyRoute:
    """Texts in, a dict for each out."""

    def read(self, body: bytes, headers: Mapping[str, str]) -> Question:
        asked = ClassifyBody.model_validate_json(body)
        texts = [text.as_text() if isinstance(text, TextDict) else text for text in asked.texts]
        if len({isinstance(text, str) for text in texts}) > 1:
            raise HTTPException(422, "texts and pairs of texts: send them in requests of their own")
        return Question(texts, asked.top_k)

    def write(self, question: Question, answers: Sequence[Answer]) -> Response:
        return JSONResponse({"answers": answers})

    def refuse(self, error: HTTPException) -> Response:
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
