"""Adaptive-depth ALBERT models.

errors, keys      what users get wrong, what a configuration key may hold; neither loads torch
exit_settings     the exit keys in force, with their sources; loads no torch
configuration     the modes' configurations
layer             the layer pass
albert            embeddings, encoder and pooler around it
depth             early exit's steps, and loops over them
depth_batching    passes filled up with new texts
cpu_packing, compilation, runtime: faster passes
losses            of a task, of all exits, of halting
flops             operations of a model's parts
pretraining       the objective of pre-training
rules             what decides an exit: the class of a rule, and scans of recorded layers
elbert/           keys, rules, model
ponder/           keys, distribution, rules, model; pondernet around any step function
act/              keys, encoder, model, heads
export/           loops, graph: the model with its rule as an ONNX file
layer_sharing     what one shared layer learns from a BERT's layers
published/        import names of other repositories, for the installed package
loading/          files, configs, weights, models, tokenizers, tensorflow
public            the names that `import elbert` gives

`import modeling` alone loads neither torch nor transformers, so that scripts answer --help at once;
the first public name that is asked for loads them all. Installed, the package is called `elbert`,
and `import elbert` makes all modes known to transformers.
"""

from importlib import import_module
from typing import Any

from .errors import UserError as UserError


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".public", __name__), name)


# The checkout's scripts answer --help without torch; whoever installed the package wants models.
if __name__ == "elbert":
    import_module(".public", __name__)
