"""transformers' own common tests of models, on every class that its Auto classes return for a mode.

`test_hf_suite.py` puts this file beside transformers' `test_modeling_common.py`, which is in the
source distribution alone, and runs it there.
"""

import unittest
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

import elbert
from elbert import AlbertActConfig, ElbertConfig, PonderAlbertConfig
from elbert.configuration import AdaptiveConfig

from .test_modeling_common import ModelTesterMixin  # pyrefly: ignore[missing-import]

BATCH, LENGTH = 13, 7
SHAPE = {
    "vocab_size": 99,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "type_vocab_size": 16,
}
RULE = {"exit_thres": 0.0, "cnt_thres": 2}


class ModelTester:
    """What ModelTesterMixin asks for a configuration and a batch."""

    batch_size = BATCH
    seq_length = encoder_seq_length = key_length = LENGTH
    num_hidden_layers = SHAPE["num_hidden_layers"]
    num_attention_heads = SHAPE["num_attention_heads"]
    hidden_size = SHAPE["hidden_size"]

    def __init__(self, config_class: type[AdaptiveConfig], keys: dict, labels: int) -> None:
        self.config_class = config_class
        self.keys = keys
        self.num_labels = labels
        self.is_training = labels > 0

    def get_config(self) -> AdaptiveConfig:
        return self.config_class(**SHAPE, **self.keys, num_labels=max(1, self.num_labels))

    def prepare_config_and_inputs_for_common(self) -> tuple[AdaptiveConfig, dict]:
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        mask[1:, -2:] = 0
        inputs = {
            "input_ids": torch.randint(0, 90, (BATCH, LENGTH)),
            "token_type_ids": torch.randint(0, 2, (BATCH, LENGTH)),
            "attention_mask": mask,
        }
        return self.get_config(), inputs


class Common(ModelTesterMixin):
    """Classes of a mode under the common tests.

    Attributes:
        config_class, keys: of the mode's configuration.
        all_model_classes: what is tested.
        labels: outputs of the head; 0 for an encoder, which has no loss.
        cannot_hold: the tests that fail here, and why.
    """

    config_class: type[AdaptiveConfig]
    keys: ClassVar[dict[str, Any]] = {}
    all_model_classes: tuple[type[PreTrainedModel], ...]
    labels = 3
    cannot_hold: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in cls.cannot_hold:  # a test that passes after all fails as unexpected
            setattr(cls, name, unittest.expectedFailure(getattr(cls, name)))

    def setUp(self) -> None:
        self.model_tester = ModelTester(self.config_class, self.keys, self.labels)

    def _prepare_for_class(
        self, inputs: dict[str, Any], model_class: type, return_labels: bool = False
    ) -> dict[str, Any]:
        """As HF's, whose tables of labels and choices know HF's classes alone."""
        name = model_class.__name__
        prepared = dict(inputs)
        if name.endswith("MultipleChoice"):
            for key, value in inputs.items():
                if isinstance(value, torch.Tensor) and value.dim() == 2:
                    prepared[key] = value[:, None].expand(-1, 3, -1).contiguous()
        if not return_labels or not self.labels:
            return prepared
        batch = torch.zeros(BATCH, dtype=torch.long)
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        if name.endswith("QuestionAnswering"):
            return {**prepared, "start_positions": batch, "end_positions": batch}
        if name.endswith("PreTraining"):
            return {**prepared, "labels": tokens, "sentence_order_label": batch}
        is_of_tokens = name.endswith(("TokenClassification", "MaskedLM"))
        return {**prepared, "labels": tokens if is_of_tokens else batch}


class ElbertTest(Common, unittest.TestCase):
    config_class = ElbertConfig
    all_model_classes = (elbert.ElbertForSequenceClassification,)
    keys = RULE
    cannot_hold: ClassVar[dict[str, str]] = {
        "test_correct_missing_keys": "the encoder below the exits is no model of its own",
    }


class ElbertOfUntiedLayersTest(Common, unittest.TestCase):
    config_class = ElbertConfig
    all_model_classes = (elbert.ElbertForSequenceClassification,)
    keys: ClassVar[dict[str, Any]] = {
        "num_hidden_groups": 2,
        "num_exit_layers": 2,
        "use_out_pooler": False,
        "weight_name": "equal",
        **RULE,
    }


class PonderTest(Common, unittest.TestCase):
    config_class = PonderAlbertConfig
    all_model_classes = (elbert.PonderAlbertForSequenceClassification,)
    keys: ClassVar[dict[str, Any]] = {"exit_criteria": "threshold", "exit_thres": 1.0}
    cannot_hold: ClassVar[dict[str, str]] = {
        "test_attention_outputs": "a second [CLS] makes texts longer by one token",
        "test_hidden_states_output": "a second [CLS] makes texts longer by one token",
    }


class ActModelTest(Common, unittest.TestCase):
    config_class = AlbertActConfig
    all_model_classes = (elbert.AlbertActModel,)
    labels = 0


class ActTest(ActModelTest):
    all_model_classes = (
        elbert.AlbertActForSequenceClassification,
        elbert.AlbertActForTokenClassification,
        elbert.AlbertActForMultipleChoice,
        elbert.AlbertActForMaskedLM,
    )
    labels = 3
    cannot_hold: ClassVar[dict[str, str]] = {
        "test_gradient_checkpointing_backward_compatibility": "a configuration's old key "
        "gradient_checkpointing meets the encoder of HF's ALBERT, which a head is first built with"
    }


class ActOfTwoOutputsTest(ActTest):
    """Heads whose losses need two outputs: first and last token, in order and swapped."""

    all_model_classes = (elbert.AlbertActForQuestionAnswering, elbert.AlbertActForPreTraining)
    labels = 2
