"""Adaptive Depth's import names: `from act import AlbertActConfig, AlbertActModel`."""

from elbert import AlbertActConfig, AlbertActModel

__all__ = ["AlbertActConfig", "AlbertActModel", "TFAlbertActModel"]

TFAlbertActModel = None  # the model card imports it; there is no TensorFlow model
