"""Adaptive-depth ALBERT models.

errors, keys, exit_settings: what users get wrong, what keys may hold, which are in force; no torch
layer, albert, depth, depth_batching: the layer pass, the model around it, loops over depth
rules, losses, flops, cpu_packing, compilation: what decides an exit, is minimised, counted, faster
elbert/, ponder/, act/, configuration: the three modes
pretraining: what is minimised on plain text
export/, loading/, published/: ONNX files, checkpoints, import names of other repositories
public, classification: what `import elbert` gives, and its one call that classifies texts

`import modeling` alone loads neither torch nor transformers, so that scripts answer --help at once;
the first public name that is asked for loads them all. Installed, the package is called `elbert`,
and `import elbert` makes all modes known to transformers.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from .errors import UserError as UserError


def __getattr__(name: str) -> Any:
    if name == "__version__" and __name__ == "elbert":
        return version("elbert")
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".public", __name__), name)


# The checkout's scripts answer --help without torch; whoever installed the package wants models.
if __name__ == "elbert":
    import_module(".public", __name__)
