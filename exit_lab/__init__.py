"""Record every layer once, then sweep, choose, compare and explore every exit setting.

settings   the flags of sweep_exits.py
run        a whole run: open, record, sweep, pick, verify, draw, compare
lab        a trained model on a dev set; what a run does with it
recording  the one full-depth pass, kept on disk
grids      the settings of each rule that a sweep tries
sweep      where each setting lets examples exit
metrics    the tasks' metrics for many settings and bootstrap draws at once
tables     a sweep as rows; the settings that no other beats
frontiers  what each rule, and truncation, can do at a cost; chosen on one part of the examples
choice     a setting under a cost, within a drop, or with a guarantee
verdict    what a choice came to; is it better than truncation?
compare    the rules at equal costs, over several models
curves     figures of metric against cost, and of exits per rule
closeups   figures of single examples, and of all at a glance
pictures   what a sweep shows
explorer   explorer.html: a sweep as one page
"""
