"""Checkpoints in: files, names of tensors, configurations and tokenizers."""
