"""Training: a loop that can stop and go on, optimiser, checkpoints, search, pre-training data."""
