"""ELBERT: every layer has an exit, and a rule on the answers so far says who leaves.

rules: who exits, and when
model: the exits' classifiers, on ALBERT
"""
