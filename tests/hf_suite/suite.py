"""transformers' own common tests of models, on every class that its Auto classes return for a mode.

`test_hf_suite.py` puts this file beside transformers' `test_modeling_common.py`, which is in the
source distribution alone, and runs it there. Beside it are two more that fit:

- `test_training_mixin.py`: a classifier and a masked language model learn one batch by heart. Those
  of the Trainer, tests/trainer, are not in the distribution.
- `test_pipeline_mixin.py`: makes pipelines of saved models and streams texts through them in
  batches. It takes what else a pipeline must do from tests/pipelines, and its models from the hub:
  the first is not in the distribution, and the second needs the network, so `Answers` below and
  tiny models of `test_hf_suite.py` stand in for them.
"""

import unittest
from typing import Any, ClassVar

import torch
from transformers import Pipeline, PreTrainedModel, PreTrainedTokenizerBase, pipeline
from transformers.testing_utils import nested_simplify

import elbert
from elbert import AlbertActConfig, ElbertConfig, PonderAlbertConfig
from modeling.configuration import AdaptiveConfig

from .test_modeling_common import ModelTesterMixin  # pyrefly: ignore[missing-import]
from .test_pipeline_mixin import (  # pyrefly: ignore[missing-import]
    PipelineTesterMixin,
    pipeline_test_mapping,
)
from .test_training_mixin import TrainingTesterMixin  # pyrefly: ignore[missing-import]

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
NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.0,
}


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


class Answers:
    """A pipeline answers a text as with others, one by one and in padded batches."""

    task: str

    def get_test_pipeline(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dtype: str
    ) -> tuple[Pipeline, list[str]]:
        answering = pipeline(self.task, model=model, tokenizer=tokenizer, dtype=dtype)
        return answering, ["a man [MASK]", "a big dog walks in the [MASK]"]

    def run_pipeline_test(self, answering: Pipeline, examples: list[str]) -> None:
        answers = nested_simplify(answering(examples), decimals=4)
        for text, answer in zip(examples, answers, strict=True):
            assert nested_simplify(answering([text, text]), decimals=4) == [answer, answer]
        batch = nested_simplify(answering(examples, batch_size=2), decimals=4)
        assert self.without_padding(batch, answers) == answers

    def without_padding(self, batch: Any, answers: Any) -> Any:
        """Return the answers of a padded batch as they would be without padding."""
        return batch


class TextClassification(Answers):
    task = "text-classification"

    def run_pipeline_test(self, answering: Pipeline, examples: list[str]) -> None:
        super().run_pipeline_test(answering, examples)
        every_class: Any = answering(examples, top_k=None)
        assert [len(of_text) for of_text in every_class] == [3, 3]
        pair: Any = answering({"text": examples[0], "text_pair": examples[1]})
        assert pair["label"] in ["LABEL_0", "LABEL_1", "LABEL_2"]


class TokenClassification(Answers):
    task = "token-classification"


class FillMask(Answers):
    task = "fill-mask"


class FeatureExtraction(Answers):
    """Its answers are the states of all tokens, padding among them."""

    task = "feature-extraction"

    def without_padding(self, batch: Any, answers: Any) -> Any:
        return [
            [states[: len(answer[0])] for states in of_text]
            for of_text, answer in zip(batch, answers, strict=True)
        ]


for answers in (TextClassification, TokenClassification, FillMask, FeatureExtraction):
    pipeline_test_mapping[answers.task]["test"] = f"{__name__}.{answers.__name__}"


class Common(PipelineTesterMixin, ModelTesterMixin):
    """Classes of a mode under the common tests.

    Attributes:
        config_class, keys: of the mode's configuration.
        all_model_classes: what is tested.
        labels: outputs of the head; 0 for an encoder, which has no loss.
        pipeline_model_mapping: the class of each pipeline.
        cannot_hold: the tests that fail here, and why.
    """

    config_class: type[AdaptiveConfig]
    keys: ClassVar[dict[str, Any]] = {}
    pipeline_model_mapping: ClassVar[dict[str, Any]] = {}
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
    pipeline_model_mapping: ClassVar[dict[str, Any]] = {
        "text-classification": elbert.ElbertForSequenceClassification
    }
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
    pipeline_model_mapping: ClassVar[dict[str, Any]] = {
        "text-classification": elbert.PonderAlbertForSequenceClassification
    }
    cannot_hold: ClassVar[dict[str, str]] = {
        "test_attention_outputs": "a second [CLS] makes texts longer by one token",
        "test_hidden_states_output": "a second [CLS] makes texts longer by one token",
    }


class ActModelTest(Common, unittest.TestCase):
    config_class = AlbertActConfig
    all_model_classes = (elbert.AlbertActModel,)
    labels = 0
    pipeline_model_mapping: ClassVar[dict[str, Any]] = {"feature-extraction": elbert.AlbertActModel}


class ActTest(ActModelTest):
    all_model_classes = (
        elbert.AlbertActForSequenceClassification,
        elbert.AlbertActForTokenClassification,
        elbert.AlbertActForMultipleChoice,
        elbert.AlbertActForMaskedLM,
    )
    labels = 3
    pipeline_model_mapping: ClassVar[dict[str, Any]] = {
        "text-classification": elbert.AlbertActForSequenceClassification,
        "token-classification": elbert.AlbertActForTokenClassification,
        "fill-mask": elbert.AlbertActForMaskedLM,
    }
    cannot_hold: ClassVar[dict[str, str]] = {
        "test_gradient_checkpointing_backward_compatibility": "a configuration's old key "
        "gradient_checkpointing meets the encoder of HF's ALBERT, which a head is first built with"
    }


class ActOfTwoOutputsTest(ActTest):
    """Heads whose losses need two outputs: first and last token, in order and swapped."""

    all_model_classes = (elbert.AlbertActForQuestionAnswering, elbert.AlbertActForPreTraining)
    labels = 2


class Learning(TrainingTesterMixin):
    """A tiny model under the training tests, in fewer steps: losses fall by 90%."""

    config_class: type[AdaptiveConfig]
    model_class: type[PreTrainedModel]
    keys: ClassVar[dict[str, Any]] = {}
    training_overfit_steps = 100
    training_overfit_learning_rate = 5e-3
    training_overfit_seq_length = 16

    @property
    def model_tester(self) -> ModelTester:
        return ModelTester(self.config_class, {**self.keys, **NO_DROPOUT}, labels=3)

    @property
    def all_model_classes(self) -> tuple[type[PreTrainedModel]]:
        return (self.model_class,)


class OfClasses(Learning):
    """A classifier, whose labels are of texts."""

    def _create_text_training_batch(
        self, batch_size: int, seq_length: int, vocab_size: int
    ) -> dict[str, torch.Tensor]:
        numbers = torch.arange(batch_size * seq_length).view(batch_size, seq_length)
        return {"input_ids": 1 + numbers % (vocab_size - 1), "labels": torch.arange(batch_size)}


class ElbertLearnsTest(OfClasses, unittest.TestCase):
    config_class = ElbertConfig
    model_class = elbert.ElbertForSequenceClassification


class PonderLearnsTest(OfClasses, unittest.TestCase):
    config_class = PonderAlbertConfig
    model_class = elbert.PonderAlbertForSequenceClassification
    keys: ClassVar[dict[str, Any]] = {"kl_penalty_factor": 0.0}


class ActLearnsTest(OfClasses, unittest.TestCase):
    config_class = AlbertActConfig
    model_class = elbert.AlbertActForSequenceClassification
    keys: ClassVar[dict[str, Any]] = {"tau": 0.0}


class ActMaskedLearnsTest(Learning, unittest.TestCase):
    config_class = AlbertActConfig
    model_class = elbert.AlbertActForMaskedLM
    keys: ClassVar[dict[str, Any]] = {"tau": 0.0}
