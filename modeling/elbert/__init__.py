"""ELBERT: every layer has an exit, and a rule on the answers so far says who leaves.

keys: of its config.json
exits: the classifiers   rules: who leaves, and when   rule_table: the rules by name
model: both on ALBERT    loading: weights in
"""
