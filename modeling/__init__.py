"""Adaptive-depth ALBERT models.

errors, keys, exit_settings      users' errors, the table of keys, the keys in force; no torch
layer, albert                    the layer pass and the encoder around it
depth, depth_batching            loops over depth: for a batch, for slots that are filled up
rules                            the class of an exit rule, and scans of recorded layers
elbert/, ponder/, act/           the three modes; configuration: their keys, and what a pass costs
losses, pretraining              what is minimised: on tasks, on plain text
cpu_packing                      faster passes on a CPU
export/                          ONNX files
loading/                         checkpoints, tokenizers
public                           what `import elbert` gives; a call and a pipeline that classify
published/                       import names of other repositories

`import modeling` alone loads neither torch nor transformers, so that scripts answer --help at once;
the first public name that is asked for loads them all. Installed, the package is called `elbert`,
and `import elbert` makes all modes known to transformers.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any

from .errors import UserError as UserError
from .runtime import waiting


def __getattr__(name: str) -> Any:
    if name == "__version__" and __name__ == "elbert":
        return version("elbert")
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".public", __name__), name)


def __dir__() -> list[str]:
    return dir(import_module(".public", __name__))


# The checkout's scripts answer --help without torch; whoever installed the package wants models.
if __name__ == "elbert":
    if "torch" not in sys.modules:  # later, OpenMP would not read it
        os.environ.update(waiting())
    import_module(".public", __name__)
