"""`from ponder_albert.distributions import GeneralizedGeometricDist`."""

from elbert import GeneralizedGeometricDist as GeneralizedGeometricDist
