"""POST /predict, as Hugging Face's text-embeddings-inference (TEI) answers for a classifier.

    curl localhost:8000/predict --json '{"inputs": "A moving, funny film."}'

`inputs` is a text, or a pair of two, [TEXT, TEXT]; several are a list of lists, [[TEXT], [TEXT]].
The answer to one text lists all classes, the most probable first; that to several is a list of
these. With `parameters`, as huggingface_hub's client sends them, a list is one of texts, and the
answer always a list of lists, as that of HF's hosted models.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import HTTPException
from pydantic import Field
from starlette.responses import JSONResponse, Response

from elbert.classifier import Answer

from .questions import Question, Strict, Text, TextDict, as_text, detail_text

# TEI's names of what went wrong, by status; others are its backend's.
ERROR_TYPES = {413: "Validation", 415: "Validation", 422: "Validation", 503: "Overloaded"}


class Parameters(Strict):
    """What huggingface_hub's client may ask for."""

    top_k: Annotated[int, Field(ge=1, strict=True)] | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None


class PredictBody(Strict):
    """A text, a pair or a list of these, and how to score them."""

    inputs: str | TextDict | Annotated[list[str | list[str] | TextDict], Field(min_length=1)]
    raw_scores: bool = False
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    parameters: Parameters | None = None

    def texts(self) -> list[Text]:
        """Return the texts; raises HTTPException for lists of other lengths than one or two."""
        if isinstance(self.inputs, str | TextDict):
            return [as_text(self.inputs)]
        if self.is_single:
            return [as_text([text for text in self.inputs if isinstance(text, str)])]
        return [as_text(text) for text in self.inputs]

    @property
    def is_single(self) -> bool:
        """Whether `inputs` is one text or pair: TEI takes a list of strings for these, too."""
        if not isinstance(self.inputs, list):
            return True
        has_strings = all(isinstance(text, str) for text in self.inputs)
        return has_strings and self.parameters is None


class PredictRoute:
    """`inputs` in, classes and scores out.

    truncation_side: the end of a long text that the model's tokenizer cuts off.
    """

    def __init__(self, truncation_side: str) -> None:
        self.truncation_side = truncation_side

    def read(self, body: bytes, headers: Mapping[str, str]) -> Question:
        asked = PredictBody.model_validate_json(body)
        direction = asked.truncation_direction
        if direction and direction.lower() != self.truncation_side:
            raise HTTPException(
                422,
                f"truncation_direction {direction}: this model's tokenizer cuts at the "
                f"{self.truncation_side}",
            )
        parameters = asked.parameters or Parameters()
        function = parameters.function_to_apply
        if asked.raw_scores and function not in (None, "none"):
            raise HTTPException(
                422, f"raw_scores asks for logits, and function_to_apply for {function}: give one"
            )
        if asked.raw_scores:
            function = "none"
        # Without a word on it, the server's flag decides.
        long_texts = {None: None, True: "cut", False: "refuse"}[asked.truncate]
        return Question(
            asked.texts(),
            top_k=None,
            long_texts=long_texts,
            function=function,
            form={
                "is_flat": asked.is_single and asked.parameters is None,
                "top_k": parameters.top_k,
            },
        )

    def write(self, question: Question, answers: Sequence[Answer]) -> Response:
        lists = [classes_of(answer)[: question.form["top_k"]] for answer in answers]
        return JSONResponse(lists[0] if question.form["is_flat"] else lists)

    def refuse(self, error: HTTPException) -> Response:
        kind = ERROR_TYPES.get(error.status_code, "Backend")
        content = {"error": detail_text(error), "error_type": kind}
        return JSONResponse(content, error.status_code, error.headers)


def classes_of(answer: Answer) -> list[dict[str, Any]]:
    """List the classes of an answer with their scores.

    A model that predicts a value has none: the value is that of LABEL_0, as in HF's pipeline.
    """
    return answer.get("classes") or [{"label": "LABEL_0", "score": answer["score"]}]
