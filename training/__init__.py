"""What changes weights, and what a training leaves on disk. Begin with `fine_tune.py`.

It imports `evaluation`, `runs`, `glue`, `elbert` and `modeling`; not `exit_lab`.

fine_tune        run_glue.py --do_train: from its settings to a trained model
starting_model   the configuration, tokenizer, weights and exit keys that it starts from
trainer          the loop of all trainings
checkpoints      what the loop leaves on disk, and how another run goes on from it
optimizer        parameter groups, and schedules of the learning rate
teacher          the classifier whose answers, soft labels, another model learns from
class_weights    how much each class counts
score_scale      a regression's labels, standardised while a step is taken
log              a training's log: a progress bar, lines of JSON, curves
model_folder     a model's folder, written whole or not at all
search, study    run_glue.py --hp_search
parity           run_parity.py
classifier/      make_classifier.py: from a table to a classifier, in steps
pretraining/     run_pretraining.py
layer_sharing/   share_layers.py
"""
