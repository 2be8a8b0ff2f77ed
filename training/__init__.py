"""Training: everything that changes weights, and what a training leaves on disk.

trainer                the training loop, for every script: progress bar, trackers, JSON lines
start                  what a script begins with: devices, logging, output directory, signals
settings               flags as dataclasses: their help, ranges, and what may change between runs
checkpoints            saving and resuming: state, checkpoints, best and finished model
provenance             where a result comes from; the removal of results of weights that are gone
optimizer              AdamW and LAMB in the published parameter groups; schedules
fine_tuning            run_glue.py: the optimiser, batches and log of a task, METRIC@COST
fine_tuning_settings   run_glue.py: the flags of model, data, training and search
search                 run_glue.py --hp_search: settings, their study, and the table
runs                   scripts of the suite as processes: started, stopped, gone on with
pretraining            run_pretraining.py: schedule, model, tokenizer, and the training
pretraining_settings   run_pretraining.py and share_layers.py: their flags
pretraining_data       examples for MLM and SOP, masked on the way; SentencePiece tokenizers
layer_sharing          share_layers.py: text in batches, the student, and the training
text                   text files to sentences, and to examples before masking
parity, parity_settings   run_parity.py: the vectors, the training, the flags
"""
