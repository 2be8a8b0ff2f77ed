"""Checkpoints in.

files: a directory's or the hub's     configs: configurations, and overrides of exit keys
weights: tensors into a model
tokenizers: beside a checkpoint       tensorflow: TensorFlow's checkpoints
"""
