"""The import names of two published repositories, for programs that were written with those.

An installed `elbert` comes with them as packages of their own: ponder_albert (PonderALBERT) and act
(Adaptive Depth). In the checkout they lie idle.
"""
