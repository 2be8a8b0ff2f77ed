"""Training: settings, a loop that can stop and go on, checkpoints, search, pre-training, parity."""
