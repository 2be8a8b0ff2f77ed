"""Running a model over a data set: the three modes, their reports and their pictures.

keys                the modes' configuration keys; no torch
settings            run_glue.py's flags for who stops, and for the evaluation
glue_run            a run of run_glue.py: train, evaluate, predict
modes               who stops, and when: all that differs between ways to stop, with its reports
calibration         the texts that set the scales of an int8 file
job                 a trained model, a data set, and how the one is to run over the other
predictions         the answers to a data set: batches in, tensors out, sharded and gathered
onnx_file           an exported model, run in ONNX Runtime
results             what every evaluation reports, and the answers to a test set
figures             what pictures share
token_pictures      sentences with each token coloured by its number of updates
text_reports        what run_pretraining.py and share_layers.py find on a text
"""
