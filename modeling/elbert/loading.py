"""An ELBERT from the weights of an ALBERT, a BERT or an ELBERT."""

from pathlib import Path

from ..configuration import ElbertConfig
from ..loading.configs import load_config
from ..loading.names import suite_names
from ..loading.weights import LoadReport, load_into, read_renamed
from .model import ElbertForSequenceClassification

# ELBERT's tensors that belong to the task that it was fine-tuned on.
TASK_OWN = ("albert.encoder.exit_out_layer", "exit_weights")


def load_pretrained(
    source: str | Path,
    config: ElbertConfig | None = None,
    cache_dir: str | None = None,
    other_task: bool = False,
    model_class: type[ElbertForSequenceClassification] = ElbertForSequenceClassification,
) -> tuple[ElbertForSequenceClassification, LoadReport]:
    """An ELBERT with the weights of `source`, an ALBERT, a BERT or an ELBERT, and what was loaded.

    `config` defaults to the source's own. `other_task`: the source was fine-tuned on another task,
    so its exit classifiers and W are left out. Raises UserError when the weights have another
    shape than the configuration asks for, or none of a layer's weights are there.
    """
    config = config or load_config(source, cache_dir, model_class.config_class)
    model = model_class(config)
    tensors = read_renamed(suite_names, source, cache_dir)
    wanted = model.state_dict()
    for part in ("weight", "bias"):  # a fine-tuned model's classifier, if it has as many labels
        theirs, ours = f"classifier.{part}", f"albert.encoder.exit_out_layer.classifier.{part}"
        if theirs in tensors and ours in wanted and tensors[theirs].shape == wanted[ours].shape:
            tensors.setdefault(ours, tensors.pop(theirs))
    heads = ("albert.pooler.", *TASK_OWN)
    return model, load_into(model, tensors, source, heads, TASK_OWN if other_task else ())
