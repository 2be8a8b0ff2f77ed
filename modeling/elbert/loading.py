"""An ELBERT from the weights of an ALBERT, a BERT or an ELBERT."""

from pathlib import Path

from modeling.configuration import ElbertConfig
from modeling.elbert.model import ElbertForSequenceClassification
from modeling.loading.configs import load_config
from modeling.loading.names import Tensors, suite_names
from modeling.loading.weights import LoadReport, adopt, read_as

# ELBERT's tensors that belong to the task that it was fine-tuned on.
TASK_OWN = ("albert.encoder.exit_out_layer", "exit_weights")


def load_pretrained(
    source: str | Path,
    config: ElbertConfig | None = None,
    cache_dir: str | None = None,
    other_task: bool = False,
    model_class: type[ElbertForSequenceClassification] = ElbertForSequenceClassification,
) -> tuple[ElbertForSequenceClassification, LoadReport]:
    """An ELBERT with the weights of `source`, an ALBERT, BERT or ELBERT, and what was loaded.

    `config` defaults to the source's own. `other_task`: the source was fine-tuned on another task,
    so its exit classifiers and W are left out. Raises UserError when the weights have another
    shape than the configuration asks for, or none of a layer's weights are there.
    """
    config = config or load_config(source, cache_dir, model_class.config_class)
    model = model_class(config)
    tensors = read_as(suite_names, source, cache_dir)
    adopt_classifier(
        tensors, model.state_dict(), "classifier", "albert.encoder.exit_out_layer.classifier"
    )
    heads = ("albert.pooler.", *TASK_OWN)
    return model, adopt(model, tensors, source, heads, TASK_OWN if other_task else ())


def adopt_classifier(tensors: Tensors, wanted: Tensors, old: str, new: str) -> None:
    """A fine-tuned model's `old` classifier becomes `new`, if the number of labels is the same."""
    for part in ("weight", "bias"):
        theirs, ours = f"{old}.{part}", f"{new}.{part}"
        if theirs in tensors and ours in wanted and tensors[theirs].shape == wanted[ours].shape:
            tensors.setdefault(ours, tensors.pop(theirs))
