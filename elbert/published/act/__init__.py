"""Adaptive Depth's import names: `from act import AlbertActConfig, AlbertActModel`."""

from typing import Any, NoReturn

from elbert import AlbertActConfig, AlbertActModel, UserError

__all__ = ["AlbertActConfig", "AlbertActModel", "TFAlbertActModel"]


class TFAlbertActModel:
    """A name that the model card imports: there is no TensorFlow model here."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.from_pretrained()

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> NoReturn:
        """Raise UserError, which names the PyTorch model."""
        raise UserError(
            "TFAlbertActModel is a model of TensorFlow, which this project does not have: use "
            "AlbertActModel, in PyTorch; it reads the same checkpoints"
        )
