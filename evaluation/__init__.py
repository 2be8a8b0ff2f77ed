"""A model's answers to a data set: given, measured, swept, reported. Begin with `evaluate.py`.

It imports `runs`, `glue`, `elbert` and `modeling`.

What run_glue.py does with a trained model:

evaluate          an evaluation on the dev set, and the answers to the test set
modes/            how each mode runs over a data set, and what it reports
predict           batches in, recorded answers out; processes share the examples
measures, scores  the task's metrics, those of each layer, and what is suspect
summary, report   what was found: eval_results.json, lines for the console, pictures
figures           what all pictures share
metric            the metric that chooses a model
prediction_files  the answers to a test set as files
model_card        a card for the hub, made from an evaluation

Exit settings, on recorded answers:

sweep             from settings to exits, metrics and the frontier
exit_metrics      metrics of many settings at once
frontier          the settings that no other beats

Tables of new texts:

table_settings    the flags of classify.py
scorer            a table's rows, answered
scored_tables     a table in parts: a run that was stopped goes on
table_parts       the parts of a table, saved and checked
ray_tables        the same on a Ray cluster
calibration       the texts that set the scales of an int8 ONNX file
"""
