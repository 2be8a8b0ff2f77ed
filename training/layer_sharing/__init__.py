"""A BERT's layers as one shared ALBERT layer that follows the BERT's states on plain text.

The student applies one layer N times. Its state after pass k is drawn to the teacher's state after
layer round(k·L/N), by the share of the teacher's variance that it leaves unexplained. The idea is
that of recursive transformers retrofitted from ordinary ones (Bae et al. 2024, "Relaxed Recursive
Transformers"); the targets are hidden states, as in TinyBERT (Jiao et al. 2020).
"""
