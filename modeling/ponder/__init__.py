"""PonderNet and PALBERT: halting distributions, losses and models."""
