"""Checkpoints in.

files: a directory's or the hub's     configs: configurations, and overrides of exit keys
weights: tensors into a model         names: ALBERT's and BERT's tensors under this suite's names
tokenizers: beside a checkpoint       tensorflow, tensorflow_names: TensorFlow's checkpoints
"""
