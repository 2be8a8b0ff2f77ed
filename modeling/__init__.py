"""The networks, and what is true of a model's folder. Begin with `exits/model.py`, then `depth.py`.

It imports none of the project's other packages.

layer, encoder         the layer pass, and the encoder around it
hf_layers/             any other encoder, by transformers' own layers
depth, depth_batching  loops over depth: for a batch, and for slots that are kept full
exits/, ponder/, act/  the three modes: ELBERT, PonderNet, Adaptive Depth
rules                  what an exit rule is, and scans of recorded layers
losses                 losses of a task, and of all exits
configuration, keys    the modes' configurations, what a layer pass costs, and every key
exit_settings          where a key's value comes from: a flag, exit_config.json, config.json
families, labels       which checkpoints of other encoders load; labels go by name
loading/, export/      checkpoints and tokenizers; ONNX files
cpu_packing            models for inference on a CPU, packed
graphs, graph_slots    models for inference on a GPU, as graphs; captures.py records and replays
runtime                threads and memory of a process
files, errors          files of a model's folder, and their hashes; errors for users

Importing the package loads no torch: `__init__.pyi` says in which module each public name is, and a
name's module is imported when the name is first used. `import elbert` makes all modes known to
transformers' Auto classes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
