"""Adaptive-depth ALBERT models.

errors, keys      what users get wrong, what a configuration key may hold; neither loads torch
exit_settings     which exit keys a folder means, with their sources; loads no torch
configuration     the modes' configurations
layer             the layer pass; eager_attention: in the published order of operations
albert            embeddings, encoder and pooler around it
depth             early exit's steps, and loops over them
depth_batching    passes filled up with new texts
cpu_packing, compilation, memory, threads: faster passes
losses            of a task, of all exits, of halting
flops             operations of a model's parts
pretraining       the objective of pre-training
elbert/           keys, exits, rules with rule_table, model, loading
ponder/           keys, texts, distribution, criteria, outputs, model, names, loading; pondernet
                  around any step function, and parity, PonderNet's experiment
act/              keys, halting, encoder, outputs, model, heads, loading
export/           loops, graph: the model with its rule as an ONNX file
layer_sharing     what one shared layer learns from a BERT's layers
published/        import names of other repositories, for the installed package
loading/          files, weights, names, configs, tokenizers; tensorflow, tensorflow_names

The package's public names are those below. Each is imported when it is first asked for, with its
module: to import the package alone loads neither torch nor transformers. Importing a model, or any
name from here, makes its mode known to transformers' Auto classes. Installed, the package is called
`elbert`, and `import elbert` makes all modes known at once.
"""

from importlib import import_module
from typing import Any

NAMES = {
    ".act.heads": """
        AlbertActConfig AlbertActForMaskedLM AlbertActForMultipleChoice AlbertActForPreTraining
        AlbertActForPreTrainingOutput AlbertActForQuestionAnswering
        AlbertActForSequenceClassification AlbertActForTokenClassification AlbertActModel
        AlbertActModelOutput AlbertActOutput AlbertActQuestionAnsweringOutput
    """,
    ".elbert.model": "ElbertConfig ElbertForSequenceClassification ElbertOutput",
    ".elbert.rules": "ExitRule",
    ".errors": "UserError",
    ".loading.configs": "load_config",
    ".loading.models": "load_act load_ponder load_pretrained",
    ".loading.tokenizers": "load_tokenizer",
    ".losses": "PonderClassificationLoss",
    ".ponder.criteria": "HaltingRule scan_halting",
    ".ponder.distribution": "GeneralizedGeometricDist",
    ".ponder.model": """
        PonderAlbertClassifier PonderAlbertConfig PonderAlbertForSequenceClassification
        PonderOutput PonderSequenceClassifierOutput
    """,
    ".ponder.parity": "ParityDataset ParityPonderGRU ReconstructionLoss RegularizationLoss",
    ".ponder.pondernet": "AlbertStep PonderNet",
    ".ponder.texts": "with_halting_token",
}
# A configuration comes from its model's module, which registers both.
MODULES = {name: module for module, names in NAMES.items() for name in names.split()}
__all__ = sorted(MODULES)


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(MODULES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The checkout's scripts answer --help without torch; whoever installed the package wants models.
if __name__ == "elbert":
    for module in (".elbert.model", ".ponder.model", ".act.heads"):
        import_module(module, __name__)
