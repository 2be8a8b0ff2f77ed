"""`from ponder_albert.models import PonderAlbertClassifier`."""

from elbert import PonderAlbertClassifier

__all__ = ["PonderAlbertClassifier"]
