"""/v2/models/NAME/infer: the Open Inference Protocol of KServe, Triton and MLServer, with texts.

    curl localhost:8000/v2/models/NAME/infer --json '{"inputs": [{"name": "text",
      "datatype": "BYTES", "shape": [1], "data": ["A moving, funny film."]}]}'

The input `text_pair` has the second texts of pairs. Tensors may also be binary, behind the JSON, as
Triton's clients send them and wish to get them. The protocol is at
https://github.com/kserve/open-inference-protocol, and Triton's binary tensors are at
https://github.com/triton-inference-server/server (docs/protocol/extension_binary_data.md).
"""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import HTTPException
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from elbert.classifier import Answer
from modeling.configuration import AdaptiveConfig
from modeling.loading.configs import label_names

from .questions import Question, Text, detail_text

HEADER_LENGTH = "inference-header-content-length"  # bytes of JSON, where binary tensors follow
NUMPY_TYPES = {"FP32": "<f4", "INT64": "<i8"}
VERSION = "1"  # of a model
INPUTS = ("text", "text_pair")


class Tensor(BaseModel):
    """An input; further keys and parameters are for other servers."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)


class WantedOutput(BaseModel):
    """An output that a client asks for."""

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class InferBody(BaseModel):
    """Texts as tensors, and the outputs to return; by default all."""

    id: str | None = None
    inputs: list[Tensor] = Field(min_length=1)
    outputs: list[WantedOutput] = Field(default_factory=list)
    parameters: dict[str, Any] = Field(default_factory=dict)


class Output:
    """An output of every answer: its name, its type, and where an answer has it.

    shape: of one text's values; () for one number or text.
    """

    def __init__(
        self,
        name: str,
        datatype: str,
        values_of: Callable[[Answer], Any],
        shape: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.values_of = values_of
        self.shape = shape

    def metadata(self) -> dict[str, Any]:
        """Return what a model's metadata tells of the output."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape]}


class InferenceRoute:
    """Tensors of texts in, tensors of labels, scores and exit layers out.

    Args:
        name: the model's.
        config: its configuration.
        platform: what runs it.
    """

    def __init__(self, name: str, config: AdaptiveConfig, platform: str) -> None:
        self.name = name
        self.platform = platform
        self.labels = label_names(config) if config.label_count > 1 else []
        self.outputs = {output.name: output for output in self.make_outputs(config)}

    def make_outputs(self, config: AdaptiveConfig) -> list[Output]:
        """List the outputs of a model: classes, several labels, or a value."""
        exit_layer = Output("exit_layer", "INT64", lambda answer: answer["exit_layer"])
        score = Output("score", "FP32", lambda answer: answer["score"])
        if not self.labels:
            return [score, exit_layer]
        scores = Output("scores", "FP32", self.scores_of, (len(self.labels),))
        if config.is_multi_label:
            # As JSON, since a text may have any number of them.
            labels = Output("labels", "BYTES", lambda answer: json.dumps(answer["labels"]))
            return [labels, scores, exit_layer]
        label = Output("label", "BYTES", lambda answer: answer["label"])
        return [label, score, scores, exit_layer]

    def scores_of(self, answer: Answer) -> list[float]:
        """Return an answer's scores in the order of the model's labels."""
        by_label = {entry["label"]: entry["score"] for entry in answer["classes"]}
        return [by_label[label] for label in self.labels]

    def metadata(self) -> dict[str, Any]:
        """Return what /v2/models/NAME tells."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": self.platform,
            "inputs": [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in INPUTS],
            "outputs": [output.metadata() for output in self.outputs.values()],
            "labels": self.labels,
        }

    def check_model(self, name: str, version: str = VERSION) -> None:
        """Raise HTTPException for a model that is not here."""
        if (name, version) != (self.name, VERSION):
            raise HTTPException(
                404, f"no model {name!r:.100}, version {version!r:.100}: here is {self.name!r}, 1"
            )

    def read(self, body: bytes, headers: Mapping[str, str]) -> Question:
        length = headers.get(HEADER_LENGTH, str(len(body)))
        if not length.isdecimal() or int(length) > len(body):
            raise HTTPException(422, f"{HEADER_LENGTH}: {length!r:.50} of {len(body)} bytes")
        asked = InferBody.model_validate_json(body[: int(length)])
        columns = read_tensors(asked.inputs, body[int(length) :])
        return Question(
            pair_up(columns),
            top_k=None,
            form={
                "id": asked.id,
                "wanted": self.wanted_outputs(asked),
                "is_binary": asked.parameters.get("binary_data_output") is True,
            },
        )

    def wanted_outputs(self, asked: InferBody) -> dict[str, bool | None]:
        """Return the outputs that a client asks for, and whether each is to be binary."""
        wanted: dict[str, bool | None] = {}
        for output in asked.outputs:
            if output.name not in self.outputs:
                raise HTTPException(
                    422,
                    f"no output {output.name!r:.100}: the outputs are {', '.join(self.outputs)}",
                )
            if "classification" in output.parameters:
                raise HTTPException(
                    422, "classification: not here; the output label names the class of each text"
                )
            wanted[output.name] = output.parameters.get("binary_data")
        return wanted or dict.fromkeys(self.outputs)

    def write(self, question: Question, answers: Sequence[Answer]) -> Response:
        tensors, buffers = [], []
        for name, is_binary in question.form["wanted"].items():
            output = self.outputs[name]
            tensor = {**output.metadata(), "shape": [len(answers), *output.shape]}
            values = np.array([output.values_of(answer) for answer in answers])
            if question.form["is_binary"] if is_binary is None else is_binary:
                content = binary(output.datatype, values)
                tensor["parameters"] = {"binary_data_size": len(content)}
                buffers.append(content)
            else:
                tensor["data"] = values.ravel().tolist()
            tensors.append(tensor)
        content = {"model_name": self.name, "model_version": VERSION, "outputs": tensors}
        if question.form["id"] is not None:
            content["id"] = question.form["id"]
        if not buffers:
            return JSONResponse(content)
        head = json.dumps(content).encode()
        return Response(
            b"".join([head, *buffers]),
            media_type="application/octet-stream",
            headers={HEADER_LENGTH: str(len(head))},
        )

    def refuse(self, error: HTTPException) -> Response:
        return JSONResponse({"error": detail_text(error)}, error.status_code, error.headers)


def binary(datatype: str, values: np.ndarray) -> bytes:
    """Return values as Triton's binary tensors have them: a text behind its length."""
    if datatype != "BYTES":
        return values.astype(NUMPY_TYPES[datatype]).tobytes()
    texts = [text.encode() for text in values.tolist()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def read_tensors(tensors: Sequence[Tensor], buffer: bytes) -> dict[str, list[str]]:
    """Return the texts of each input, by its name; a single input may have any name.

    buffer: what stands behind the JSON, the tensors' bytes one after another.

    Raises HTTPException for other names and types, and for other numbers of texts than the shape's.
    """
    columns: dict[str, list[str]] = {}
    if len(tensors) == 1 and tensors[0].name != INPUTS[1]:
        tensors = [tensors[0].model_copy(update={"name": INPUTS[0]})]
    for tensor in tensors:
        if tensor.name not in INPUTS or tensor.datatype != "BYTES" or tensor.name in columns:
            raise HTTPException(
                422,
                f"input {tensor.name!r:.100} of type {tensor.datatype!r:.50}: the inputs are text "
                "and, for pairs, text_pair, of type BYTES",
            )
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            texts = list(flat(tensor.data or []))
        elif isinstance(size, int) and 0 <= size <= len(buffer):
            texts = list(split_texts(buffer[:size]))
            buffer = buffer[size:]
        else:
            raise HTTPException(422, f"input {tensor.name}: binary_data_size is {size!r:.50}")
        if not all(isinstance(text, str) for text in texts):
            raise HTTPException(422, f"input {tensor.name}: data that is no text")
        if len(texts) != math.prod(tensor.shape):
            raise HTTPException(
                422, f"input {tensor.name}: {len(texts)} texts, of the shape {tensor.shape[:5]}"
            )
        columns[tensor.name] = texts
    if buffer:
        raise HTTPException(422, f"{len(buffer)} bytes behind the last binary tensor")
    return columns


def flat(data: Sequence[Any]) -> Iterator[Any]:
    """Yield the elements of a tensor, whose data may be nested as its shape is."""
    for value in data:
        if isinstance(value, list):
            yield from flat(value)
        else:
            yield value


def split_texts(buffer: bytes) -> Iterator[str]:
    """Yield the texts of a binary tensor, each behind its length in four bytes.

    Raises HTTPException for a buffer that ends within a text, and for what is not UTF-8.
    """
    place = 0
    while place < len(buffer):
        start = place + 4
        (length,) = struct.unpack("<I", buffer[place:start].ljust(4, b"\xff"))
        place = start + length
        if place > len(buffer):
            raise HTTPException(422, "a binary tensor that ends within a text")
        try:
            yield buffer[start:place].decode()
        except UnicodeDecodeError as error:
            raise HTTPException(422, f"a text that is not UTF-8: {error}") from error


def pair_up(columns: Mapping[str, list[str]]) -> list[Text]:
    """Return the texts, or pairs, of the inputs; raises HTTPException where they do not fit."""
    texts, seconds = columns.get("text"), columns.get("text_pair")
    if not texts or (seconds is not None and len(seconds) != len(texts)):
        raise HTTPException(422, "the input text has at least one text; text_pair as many")
    return list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
