"""What a script's run is: flags, process, folder, model. Begin with `settings.py`.

It imports `glue`, `elbert` and `modeling`.

From the command line to settings:

flags          flags, declared as fields of dataclasses
settings       the flags that scripts share, and those of run_glue.py
trained_flags  flags that a command with a trained model takes from its training

A process and its console:

processes      how a script begins, is stopped, ends, and runs another
console        progress bars, messages, tables
start          devices, logging, the seed, an --output_dir to write to
trackers       experiment trackers, which get a run's curves

Files:

files          a file is written whole or not at all
folder         RunFolder: a folder of results, which knows what runs wrote into it
output_dir     --output_dir: how far its training is, and which results are its model's

Where a result comes from:

provenance     command line, flags, commit, versions, hashes
fingerprint    are these the same values or files?
used_files     files of a result, which must not change until it is written
job            a trained model opened for a data set

The hub:

hub_data       a data set by its name
hub_upload     a model's folder, without what is private

Only `start`, `trackers` and `job` load torch.
"""
