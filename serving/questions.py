"""What a client asks, in whichever way: each way to ask reads a `Question`, and writes answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import Response

from elbert.classifier import Answer

Text = str | tuple[str, str]


@dataclass
class Question:
    """Texts or pairs, and what is to be told of each.

    Attributes:
        texts: in their order.
        top_k: number of classes to list, the most probable first; None: all.
        long_texts: treatment of texts that are longer than the model reads; cut, windows, or
            "refuse". None: the server's own.
        function: what makes scores of logits: "softmax", "sigmoid", or "none". None: what goes with
            the model.
        form: what the way to ask must know to write the answers.
    """

    texts: Sequence[Text]
    top_k: int | None = 1
    long_texts: str | None = None
    function: str | None = None
    form: Mapping[str, Any] = field(default_factory=dict)


class Route(Protocol):
    """A way to ask: how a request's body is read, and what its answer looks like."""

    def read(self, body: bytes, headers: Mapping[str, str]) -> Question:
        """Read a body; raises HTTPException or pydantic's ValidationError for what is wrong."""
        ...

    def write(self, question: Question, answers: Sequence[Answer]) -> Response:
        """Write the answers, one for each text."""
        ...

    def refuse(self, error: HTTPException) -> Response:
        """Write an error."""
        ...


class Strict(BaseModel):
    """A part of a body, in which a misspelt key is an error: it would have no effect."""

    model_config = ConfigDict(extra="forbid")


class TextDict(Strict):
    """A text, or a pair, as HF's pipelines take them."""

    text: str
    text_pair: str | None = None

    def as_text(self) -> Text:
        """Return the text, or the pair."""
        return self.text if self.text_pair is None else (self.text, self.text_pair)


def as_text(value: str | Sequence[str] | TextDict) -> Text:
    """Return a text or a pair that a client wrote in any of these ways.

    Raises HTTPException for a list of another length than one or two.
    """
    if isinstance(value, TextDict):
        return value.as_text()
    if isinstance(value, str):
        return value
    if len(value) not in (1, 2):
        raise HTTPException(
            422,
            f"a list of {len(value)} texts: a list is a text, [TEXT], or a pair, [TEXT, TEXT]; "
            "several texts are a list of such lists",
        )
    return value[0] if len(value) == 1 else (value[0], value[1])


def what_is_wrong(error: ValidationError) -> list[dict[str, Any]]:
    """Return the first errors of a body in a few words: its keys may be long, and many."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    return [{**each, "loc": [str(part)[:50] for part in each["loc"]]} for each in errors]


def detail_text(error: HTTPException) -> str:
    """Return an error's detail as one text."""
    detail: Any = error.detail
    if isinstance(detail, str):
        return detail
    return "; ".join(f"{'.'.join(each['loc'])}: {each['msg']}" for each in detail)
