"""ELBERT, `--model_type albert`: a rule over the exits' answers so far stops an example."""

from transformers.utils import ModelOutput

from evaluation.modes.examples import ExampleMode
from modeling.elbert.model import ElbertForSequenceClassification


class Elbert(ExampleMode):
    """A rule over the exits' answers so far stops an example."""

    name, model_class = "albert", ElbertForSequenceClassification
    optional = ("exit_weights",)  # the published code does not save it
    loss = "sum over the N exits of weight × task loss (mean over the batch); the weights sum to N"

    def scalars(self, model: ElbertForSequenceClassification, out: ModelOutput) -> dict[str, float]:
        """σ(W) of every exit."""
        if model.exit_weights is None:
            return {}
        weights = model.exit_weights.detach().sigmoid().tolist()
        return {f"exit_weight/{i}": weight for i, weight in enumerate(weights, 1)}
