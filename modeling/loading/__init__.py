"""Checkpoints in: files, configurations, weights and tokenizers, TensorFlow's among them."""
