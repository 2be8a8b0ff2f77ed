"""Adaptive-depth ALBERT models: every public name of the package."""

from transformers import AutoConfig, AutoModelForSequenceClassification

from .checkpoints import apply_exit_config, load_config, load_pretrained, load_tokenizer
from .configuration import ElbertConfig, ExitRule
from .elbert import ElbertForSequenceClassification, ElbertOutput
from .errors import UserError

AutoConfig.register("elbert", ElbertConfig, exist_ok=True)
AutoModelForSequenceClassification.register(
    ElbertConfig, ElbertForSequenceClassification, exist_ok=True
)

__all__ = [
    "ElbertConfig",
    "ElbertForSequenceClassification",
    "ElbertOutput",
    "ExitRule",
    "UserError",
    "apply_exit_config",
    "load_config",
    "load_pretrained",
    "load_tokenizer",
]
