"""Adaptive Depth: every token has as many layer passes as it needs.

keys: of its config.json
encoder: the layer, and the loops over its passes until tokens halt
model: embeddings and encoder      heads: the model below the heads of tasks
"""
