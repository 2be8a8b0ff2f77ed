"""Record every layer once, then sweep, choose, compare and explore every exit setting.

settings   the flags of sweep_exits.py
lab        a whole run: open, record, sweep, pick, verify, draw, compare
grids      the settings of each rule that a sweep tries
sweep      the recorded pass; where each setting, and each baseline, lets examples exit
metrics    the tasks' metrics for many settings and bootstrap draws at once
tables     a sweep as rows; the settings that no other beats, and no mixture of two
choice     a setting under a cost, within a drop, or with a guarantee
compare    rules and baselines at equal costs, on the other part of the examples; a choice's report
figures    metric against cost, exits per rule, all examples at a glance
explorer   explorer.html: a sweep as one page
"""
