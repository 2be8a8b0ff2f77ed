"""ELBERT: every layer has an exit, and a rule on the answers so far says who leaves.

keys: of its config.json   rules: who exits, and when
model: the exits' classifiers, on ALBERT
"""
