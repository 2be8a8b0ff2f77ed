"""ELBERT: every layer has an exit, and a rule on the answers so far says who leaves.

keys: of its config.json
exits: the classifiers   rules: who exits, and when
model: both on ALBERT    loading: weights in
"""
