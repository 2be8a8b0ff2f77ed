"""Adaptive Depth's import names: `from act import AlbertActConfig, AlbertActModel`."""

from typing import Any, NoReturn

from elbert import AlbertActConfig, AlbertActModel, UserError

__all__ = ["AlbertActConfig", "AlbertActModel", "TFAlbertActModel"]


class TFAlbertActModel:
    """A name that the model card imports; the model itself is the PyTorch one alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UserError(
            "TFAlbertActModel: there is no TensorFlow model here. Use AlbertActModel; "
            "convert_albert_original_tf_checkpoint_to_pytorch.py converts TensorFlow weights"
        )

    from_pretrained = __init__
