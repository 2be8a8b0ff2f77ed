"""`from ponder_albert.losses import PonderClassificationLoss`."""

from elbert import PonderClassificationLoss

__all__ = ["PonderClassificationLoss"]
