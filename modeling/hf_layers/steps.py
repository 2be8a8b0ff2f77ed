"""The steps of an encoder of transformers: embed, what all layers read, one layer, what follows.

`EncoderSteps` takes them for any encoder that calls a list of layers one after another, each once.
What the layers are called with, such as masks and rotary embeddings, is what transformers' own code
calls them with: its `forward` runs with layers that only note their arguments. An encoder that does
more between its layers has a family of its own, a subclass in `families.py`.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import UserError

ModuleT = TypeVar("ModuleT", bound=nn.Module)

PROBE_SIZE = (2, 4)  # examples and tokens of the batch that an encoder is watched with


class LayerCall(NamedTuple):
    """What a layer is called with beside its states: positional arguments, and named ones."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Anatomy:
    """What watching an encoder told of it.

    Attributes:
        layers: path of the list of layers.
        embeddings: path of the module whose output is the states at depth 0; "" if there is none.
        outputs: how many things a layer returns in a tuple, states first; 0: the states alone.
        behind: paths of the modules that the states pass behind the last layer, a final norm.
    """

    layers: str
    embeddings: str
    outputs: int
    behind: tuple[str, ...]


class EncoderSteps:
    """The steps of an encoder, `encoder` in every method; shapes are those of `EarlyExitModel`.

    It has no parameters: these are the encoder's. A family overrides what differs.
    """

    anatomy: Anatomy | None = None  # known after the first batch

    def embed(self, encoder: PreTrainedModel, **text: Tensor) -> Tensor:
        """Make the states at depth 0, (batch, length, hidden).

        text: input_ids (batch, length), and what else the encoder takes; nothing that is None.
        """
        words = next(iter(text.values()))
        mask = torch.ones(words.shape[:2], dtype=torch.long, device=words.device)
        states: list[Tensor] = []
        self.note_calls(encoder, states, attention_mask=mask, **text)
        return states[0]

    def extras(self, encoder: PreTrainedModel, hidden: Tensor, mask: Tensor | None) -> Any:
        """Compute what the layers read beside the states: here a `LayerCall` for each.

        hidden: (batch, length, hidden). mask: (batch, length) int64, or None without padding.
        """
        # Any token does: what layers read beside the states follows from mask and length, or the
        # encoder is refused (`check.py`).
        padding = encoder.config.pad_token_id or 0
        any_token = (padding + 1) % encoder.config.vocab_size
        ids = torch.full(hidden.shape[:2], any_token, device=hidden.device)
        anatomy = self.watch(encoder)
        if anatomy.embeddings:  # the words are embedded already
            embeddings = encoder.get_submodule(anatomy.embeddings)
            encoder = with_part(encoder, anatomy.embeddings, Given(embeddings, hidden))
        return self.note_calls(encoder, [], input_ids=ids, attention_mask=mask)

    def run_layer(
        self, encoder: PreTrainedModel, number: int, hidden: Tensor, extras: Any
    ) -> Tensor:
        """Run layer `number` (0-based) on states (batch, length, hidden); return its states."""
        arguments, options = extras[number]
        output = self.layers(encoder)[number](hidden, *arguments, **options)
        return output[0] if isinstance(output, tuple) else output

    def finish(self, encoder: PreTrainedModel, hidden: Tensor) -> Tensor:
        """Turn a layer's states into what a head or an exit reads: the encoder's final norm."""
        for path in self.watch(encoder).behind:
            hidden = encoder.get_submodule(path)(hidden)
        return hidden

    # How the general way finds out.

    def layers(self, encoder: PreTrainedModel) -> Any:
        """Return the list of the encoder's layers."""
        return encoder.get_submodule(self.watch(encoder).layers)

    def note_calls(
        self, encoder: PreTrainedModel, states: list[Tensor], **inputs: Tensor | None
    ) -> list[LayerCall]:
        """Run transformers' `forward` without its layers; return what each is called with.

        states: gets the states that each layer is called with, all of them those at depth 0.
        """
        anatomy = self.watch(encoder)
        calls: list[LayerCall] = []
        note = partial(NotingLayer, calls, states, anatomy.outputs)
        noting = nn.ModuleList(note(layer) for layer in self.layers(encoder))
        with_part(encoder, anatomy.layers, noting)(**inputs)
        return calls

    def watch(self, encoder: PreTrainedModel) -> Anatomy:
        """Find out what the encoder is made of, by watching it on a small batch; once.

        Raises UserError for an encoder without a list of layers that run in turn, each once.
        """
        if self.anatomy is None:
            self.anatomy = anatomy_of(encoder)
        return self.anatomy


class Given(nn.Module):
    """The place holder of embeddings: it returns states (batch, length, hidden) that are known.

    The embeddings stay a part, since an encoder may ask its parameters for their type.
    """

    def __init__(self, embeddings: nn.Module, states: Tensor) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.states = states

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["embeddings"], name)

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """Return the states, whatever is to be embedded."""
        return self.states


class NotingLayer(nn.Module):
    """A layer's place holder: it notes what it is called with, and returns the states as they are.

    What else transformers reads of a layer, such as its kind of attention, is the layer's own.
    """

    def __init__(
        self, calls: list[LayerCall], states: list[Tensor], outputs: int, layer: nn.Module
    ) -> None:
        super().__init__()
        vars(self)["layer"] = layer  # no part of this module: nothing of it is to be listed twice
        self.calls = calls
        self.states = states
        self.outputs = outputs

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["layer"], name)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Note a call; states are the first argument, or `hidden_states`."""
        if arguments:
            hidden, *others = arguments
        else:
            others = []
            hidden = options.pop("hidden_states")
        self.calls.append(LayerCall(tuple(others), options))
        self.states.append(hidden)
        return (hidden, *[None] * (self.outputs - 1)) if self.outputs else hidden


def with_part(module: ModuleT, path: str, part: nn.Module) -> ModuleT:
    """Copy a module with another part at `path`; all else is shared, and nothing is changed."""
    name, _, rest = path.partition(".")
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    twin._modules[name] = with_part(module.get_submodule(name), rest, part) if rest else part
    return twin


def anatomy_of(encoder: PreTrainedModel) -> Anatomy:
    """Watch an encoder on a small batch; see `Anatomy`.

    Raises UserError for an encoder without a list of layers that run in turn, each once.
    """
    path = path_of_layers(encoder)
    layers: Any = encoder.get_submodule(path)
    ran: list[int] = []
    outputs: list[int] = []
    behind: list[str] = []
    before: dict[str, Any] = {}  # outputs of the modules before the first layer, by path
    first: list[Tensor] = []  # the states that the first layer is called with

    def before_layer(module: nn.Module, arguments: Any, options: Any) -> None:
        first.append(arguments[0] if arguments else options["hidden_states"])

    def after_other(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if not first:
            before[path] = output

    def after_layer(number: int, module: nn.Module, inputs: Any, output: Any) -> None:
        ran.append(number)
        outputs.append(len(output) if isinstance(output, tuple) else 0)

    def before_other(path: str, module: nn.Module, inputs: Any) -> None:
        is_inside = any(path.startswith(f"{outer}.") for outer in behind)
        if len(ran) == len(layers) and not is_inside:
            behind.append(path)

    hooks = [
        layer.register_forward_hook(partial(after_layer, number))
        for number, layer in enumerate(layers)
    ]
    hooks.append(layers[0].register_forward_pre_hook(before_layer, with_kwargs=True))
    for name, module in encoder.named_modules():
        if name and not name.startswith(path) and "pooler" not in name:
            hooks.append(module.register_forward_pre_hook(partial(before_other, name)))
            hooks.append(module.register_forward_hook(partial(after_other, name)))
    try:
        with torch.no_grad(), evaluating(encoder):
            padding = encoder.config.pad_token_id or 0
            any_token = (padding + 1) % encoder.config.vocab_size
            ids = torch.full(PROBE_SIZE, any_token, device=encoder.device)
            encoder(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        for hook in hooks:
            hook.remove()
    if ran != list(range(len(layers))):
        raise UserError("its layers do not run one after another, each once")
    embeddings = [name for name, output in before.items() if output is first[0]]
    outermost = min(embeddings, key=lambda name: name.count("."), default="")
    return Anatomy(path, outermost, outputs[0], tuple(behind))


def path_of_layers(encoder: PreTrainedModel) -> str:
    """Find the list of as many modules as the encoder has layers; the outermost, if several.

    Raises UserError where there is none.
    """
    count = getattr(encoder.config, "num_hidden_layers", None)
    paths = [
        name
        for name, module in encoder.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not paths:
        raise UserError("it has no list of layers, one for each of num_hidden_layers")
    return min(paths, key=lambda path: path.count("."))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put all parts of a module in eval mode, so that no random number is drawn; then back."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
