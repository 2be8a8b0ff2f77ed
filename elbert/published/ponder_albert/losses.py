"""`from ponder_albert.losses import PonderClassificationLoss`."""

from elbert import PonderClassificationLoss as PonderClassificationLoss
