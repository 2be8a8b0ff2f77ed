"""Adaptive Depth: every token has as many layer passes as it needs.

encoder: the layer, and the loops over its passes until tokens halt
model: embeddings and encoder      heads: the model below the heads of tasks
"""
