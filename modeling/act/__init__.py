"""Adaptive Depth: every token has as many layer passes as it needs.

halting: when a token stops        layer: the pass, and the halting head
encoder: the loop over passes      model, heads: the encoder alone, and below the heads of tasks
outputs: what these answer         loading: weights in
"""
