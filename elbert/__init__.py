"""Text classifiers that stop when they are sure: the project's public names.

Begin with `classifier.py`. The package imports `modeling` alone, and has all of its public names.

classifier     `classify` and `Classifier`: texts in, answers out
long_texts     a long text as windows, and their answers as one
onnx_file      an exported file that answers in a model's place
recipes        a recipe's keys, and an optimiser's groups by them
model_summary  a model's parameters, and the operations up to each exit
published/     import names of other repositories

Importing the package makes all modes known to transformers.
"""

import sys

import modeling
from modeling import *  # noqa: F403

from .classifier import Classifier, EarlyExitPipeline, classify
from .model_summary import summary
from .recipes import parameter_groups, recipe

__version__ = "1.0.0"

__all__ = [
    *dir(modeling),
    "Classifier",
    "EarlyExitPipeline",
    "__version__",
    "classify",
    "parameter_groups",
    "recipe",
    "summary",
]

# Pickles of version 1.0 name classes by the modules where these were: `elbert.depth`, for example.
for module_name, module in list(sys.modules.items()):
    if module_name.startswith("modeling."):
        for earlier_package in ("elbert", "elbert_base"):
            earlier_name = module_name.replace("modeling", earlier_package, 1)
            sys.modules.setdefault(earlier_name, module)
sys.modules["elbert.albert"] = sys.modules["modeling.encoder"]
sys.modules["elbert_base"] = modeling
