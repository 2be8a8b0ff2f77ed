"""`from ponder_albert.models import PonderAlbertClassifier`."""

from elbert import PonderAlbertClassifier as PonderAlbertClassifier
