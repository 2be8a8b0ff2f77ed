"""Record every layer once, then sweep, choose, compare and explore settings. Begin with `lab.py`.

It imports `evaluation`, `runs`, `glue`, `elbert` and `modeling`; not `training`.

lab, settings       a run of sweep_exits.py, and its flags
recording, verify   the recorded pass of a model, and a check against runs with early exit
choice, goals       a setting chosen under a limit or with a guarantee
exit_file           exit_config.json, written for the next evaluation
learnt, stopping    rules that are fitted to labelled examples
methods, frontiers  methods at equal costs: rules, seeds, baselines
compare, tables     comparisons as Markdown, sweeps as tables
estimates           values with intervals, from a bootstrap
explorer, figures   a sweep as a page, and as a figure
"""
