"""A ponder model from the weights of an ALBERT or of a ponder model."""

from pathlib import Path

from ..configuration import PonderAlbertConfig
from ..loading.configs import load_config
from ..loading.weights import LoadReport, load_into, read_renamed
from .model import PonderAlbertClassifier
from .names import HEADS, ponder_names


def load_ponder(
    source: str | Path,
    config: PonderAlbertConfig | None = None,
    cache_dir: str | None = None,
    other_task: bool = False,
) -> tuple[PonderAlbertClassifier, LoadReport]:
    """A ponder model with the weights of `source`, an ALBERT or ponder model, and what was loaded.

    `other_task`: the source was fine-tuned on another task, so its two heads are left out. Raises
    UserError when the weights have another shape than the configuration asks for.
    """
    config = config or load_config(source, cache_dir, PonderAlbertConfig)
    model = PonderAlbertClassifier(config)
    tensors = read_renamed(ponder_names, source, cache_dir)
    return model, load_into(model, tensors, source, HEADS, HEADS if other_task else ())
