"""ELBERT: every layer has an exit, and a rule on the answers so far says who leaves.

exits: the classifiers   rules: who leaves, and when   model: both on ALBERT   loading: weights in
"""
