"""Running a model over a data set: the three modes, their reports and their pictures.

settings            run_glue.py's flags for who stops, and for the evaluation
glue_run            a run of run_glue.py: train, evaluate, predict
modes               who stops, and when: all that differs between ways to stop, one file each
job                 a trained model, a data set, and how the one is to run over the other
predictions         the answers to a data set: batches in, tensors out, sharded and gathered
dev                 the dev set while a training goes on: what the best model is chosen by
early_exit          running a model whose examples stop; recording all its layers
onnx_file           an exported model, run in ONNX Runtime
results             what every evaluation reports, and the answers to a test set
exit_reports        where examples leave, at which cost, and what every layer says
figures             what pictures share; where the examples of an evaluation leave
token_pictures      sentences with each token coloured by its number of updates
parity_report       what run_parity.py shows
pretraining_report  what run_pretraining.py shows
layer_sharing_report  what share_layers.py shows
"""
