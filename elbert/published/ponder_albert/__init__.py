"""PonderALBERT's import names: models, losses, distributions."""
