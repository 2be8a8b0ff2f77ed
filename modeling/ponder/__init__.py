"""PonderALBERT: every layer gives a halting probability, learned with the task.

distribution: the step of halting, and its prior
rules: who halts, and when         model: all of it
pondernet: around any step function, and PonderNet's own experiment
"""
