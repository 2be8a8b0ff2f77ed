"""PonderALBERT: ALBERT that learns, layer by layer, how probable it is to stop here.

λ_n, the probability of halting at layer n for an example that has not halted before, is read from
a second [CLS] token; the first one feeds the classifier. With another `pooler_input` than two_cls
there is no second [CLS]: both read what ALBERT's pooler makes of a layer, and the classifier is one
linear layer, as in PALBERT. `distribution.py` has what λ means, `rules.py` says who stops, given λ.

Sources: PonderNet (Banino et al., 2021); PALBERT (Balagansky and Gavrilov, 2022) for the halting
head that sees two layers; the public PonderALBERT for the model and its names.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AlbertConfig, AutoModelForSequenceClassification, PreTrainedTokenizerBase
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from elbert_base.errors import UserError
from elbert_base.files import local_folder

from ..albert import AlbertEmbeddings, ExitLinear, Pooler, attention_mask_of, pool, wants_states
from ..configuration import HEAD_WIDTH, PonderAlbertConfig
from ..depth import (
    EarlyExitModel,
    EarlyExitOutput,
    ExampleState,
    Inputs,
    LayerWeights,
    iter_layers,
    layer_states,
)
from ..layer import AlbertLayer
from ..loading.configs import own_settings
from ..loading.tokenizers import load_tokenizer
from ..loading.weights import PONDER_NAMES, load_model
from ..losses import PonderClassificationLoss, task_loss
from ..rules import AnyRule, LayerOutput, State, scan_answers
from .distribution import GeneralizedGeometricDist, prior
from .rules import HALT

HALTING_TOKEN = 1  # position of the second [CLS]
Texts = Sequence[str] | tuple[Sequence[str], Sequence[str]]  # a list, or a pair of lists


@dataclass(repr=False)
class PonderOutput(SequenceClassifierOutput):
    """Output of the model; `layers` are those that ran.

    Attributes:
        loss: scalar; train(): total loss, eval(): loss of the answers.
        logits: (layers, batch, num_labels). An example that has halted keeps its last ones.
        halt_probabilities: λ, (batch, layers); 0 once an example has halted.
        model_halt_dist: GeneralizedGeometricDist over these layers.
        target_halt_dist: its prior.
        passes: number of layer passes that the batch took.
        answer: (batch, num_labels), eval() only: of the halting layer.
        exit_layer: (batch,) int64, 1-based, eval() only.
        weighted_ce_loss: a part of `loss`, train() only.
        kl_loss: the other part.
    """

    halt_probabilities: Tensor | None = None
    model_halt_dist: GeneralizedGeometricDist | None = None
    target_halt_dist: GeneralizedGeometricDist | None = None
    passes: int | None = None
    answer: Tensor | None = None
    exit_layer: Tensor | None = None
    weighted_ce_loss: Tensor | None = None
    kl_loss: Tensor | None = None

    def __repr__(self) -> str:
        return repr(dict(self))


def with_halting_token(values: Tensor) -> Tensor:
    """Insert the second [CLS]: repeat the first entry of (…, length).

    For token ids, segment ids and attention masks alike; [CLS] must come first.
    """
    return torch.cat((values[..., :1], values), dim=-1)


def mlp(hidden: int, outputs: int) -> list[nn.Module]:
    """Make the layers of PonderALBERT's heads: (…, hidden) -> (…, outputs)."""
    return [ExitLinear(hidden, HEAD_WIDTH), nn.GELU(), ExitLinear(HEAD_WIDTH, outputs)]


class HaltingHead(nn.Sequential):
    """Gives the logit of λ, from the halting token's states after this layer and the previous one.

    mlp is PonderALBERT's. linear, linear_cat and linear_diff are PALBERT's: `num_lambda_layers`
    tanh layers (none for 1) and an output layer, on this state; on both; on their difference.
    """

    def __init__(self, config: PonderAlbertConfig) -> None:
        reads = config.lambda_layer_arch
        width = config.hidden_size * (2 if reads == "linear_cat" else 1)
        depth = config.num_lambda_layers if reads != "mlp" and config.num_lambda_layers > 1 else 0
        if reads == "mlp":
            layers = mlp(width, 1)
        else:
            layers = []
            for _ in range(depth):
                layers += [ExitLinear(width, width), nn.Tanh()]
            layers.append(ExitLinear(width, 1))
        super().__init__(*layers)
        self.reads = reads

    # Two inputs for a Sequential, which gives the published names.
    def forward(  # pyrefly: ignore[bad-override]
        self, state: Tensor, previous: Tensor
    ) -> Tensor:
        """Return the logits (…) of states (…, hidden); `previous` is 0 at the first layer."""
        if self.reads == "linear_cat":
            state = torch.cat((state, previous), dim=-1)
        elif self.reads == "linear_diff":
            state = state - previous
        return super().forward(state)[..., 0].float()


class SharedLayer(GradientCheckpointingLayer, AlbertLayer):
    """The layer of every depth."""


class PonderAlbertClassifier(EarlyExitModel):
    """ALBERT that learns when to halt: classification, or regression for num_labels = 1.

    The criterion is read from `config` at every call. Depth is free, as all layers are one. With
    `cls_in_second_text` a call with pairs of texts begins the second with a [CLS] as well, as
    PonderALBERT does and run_glue.py does not.

    Args:
        config: PonderAlbertConfig, or a plain AlbertConfig, which gets the halting defaults.
        tokenizer: needed to call the model with texts.
        target_halt_probability: λ_p of the prior, in (0, 1]; config's own by default.
    """

    config_class = PonderAlbertConfig
    config: PonderAlbertConfig  # pyrefly: ignore[bad-override-mutable-attribute]  # HF's is any
    tensor_names = PONDER_NAMES
    task_parts = ("classifier.", "ponder.")
    new_parts = ("pooler.", *task_parts)

    def __init__(
        self,
        config: AlbertConfig,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_halt_probability: float | None = None,
    ) -> None:
        if not isinstance(config, PonderAlbertConfig):
            config = PonderAlbertConfig(**own_settings(config.to_dict(), PonderAlbertConfig))
        if target_halt_probability is not None:
            config.target_halt_probability = target_halt_probability
        super().__init__(config)
        hidden = config.hidden_size
        self.embeddings = AlbertEmbeddings(config)
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, hidden)
        self.albert_layer = SharedLayer(config)
        if config.pooler_input == "two_cls":
            self.pooler = None
            self.classifier = nn.Sequential(*mlp(hidden, config.label_count))
        else:
            self.pooler = Pooler(config, hidden)
            self.classifier = ExitLinear(hidden, config.label_count)
        self.ponder = HaltingHead(config)
        self.tokenizer = tokenizer
        self.cls_in_second_text = False
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Linear) and module is self.ponder[-1]:
            # A new model halts as its prior does, not at layer 1 or 2 as σ(0) = 1/2 would.
            halt = torch.tensor(self.config.target_halt_probability).clamp(1e-4, 1 - 1e-4)
            init.constant_(module.bias, halt.logit().item())

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        target_halt_probability: float | None = None,
        *,
        config: AlbertConfig | None = None,
        cache_dir: str | None = None,
        dtype: torch.dtype | str | None = None,
        **settings: Any,
    ) -> "PonderAlbertClassifier":
        """Load the encoder of any ALBERT checkpoint with new heads, or a saved ponder model.

        Args:
            name: a directory or a hub name; its tokenizer comes along where there is one.
            dtype: of the weights; "auto" is `config`'s, as is the default where `config` is given.
            settings: keys of its configuration, e.g. num_hidden_layers; nothing with `config`, as
                transformers' Auto classes add some of their own.

        Raises UserError for a checkpoint of several layers, or that is no ALBERT.
        """
        folder = local_folder(name, cache_dir=cache_dir)
        if target_halt_probability is not None:
            settings["target_halt_probability"] = target_halt_probability
        model, _ = load_model(cls, folder, config, **({} if config else settings))
        # Without one token ids are input enough; a call with texts will ask for it.
        with suppress(UserError):
            model.tokenizer = load_tokenizer(folder)
        if dtype == "auto" or (config and dtype is None):
            dtype = model.config.dtype
        module: nn.Module = model  # HF wraps `to` in a way that type checkers cannot read
        module.to(dtype=getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        return model.eval()

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save configuration, weights (safetensors) and, where there is one, the tokenizer."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(save_directory)

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | Texts | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | Sequence[float] | None = None,
        output_all_exits: bool = False,
        draws: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> PonderOutput:
        """Classify a batch.

        Args:
            input_ids: a list of texts, a pair of lists, or ids (batch, length) that already have
                the second [CLS] (`with_halting_token`), where the model reads one; in their place
                inputs_embeds (batch, length, embedding), which have it, too.
            attention_mask, token_type_ids, position_ids: (batch, length) int64, with ids.
            labels: (batch,) class ids, or values for regression.
            output_all_exits: in eval(), run full depth and return every layer's answer.
            draws: (batch,) the examples' uniform numbers, for `sample`; drawn here by default.
            output_hidden_states, output_attentions: as ELBERT's.
        """
        if input_ids is not None:
            input_ids, attention_mask, token_type_ids = self.read(
                input_ids, attention_mask, token_type_ids
            )
        hidden = self.embed(input_ids, token_type_ids, position_ids, inputs_embeds)
        mask = attention_mask_of(attention_mask)
        inputs = {} if draws is None else {"draws": draws}
        rule = self.config.exit_rule()
        if self.training:
            logits, halt_logits = self.all_exits(hidden, mask)
            out = self.output(logits, GeneralizedGeometricDist.from_logits(halt_logits))
            return out if labels is None else self.with_training_loss(out, labels)
        if wants_states(self.config, output_hidden_states, output_attentions):
            output_all_exits = True
        if output_all_exits or rule.never_exits:
            logits, halt_logits = self.all_exits(hidden, mask)
            dist = GeneralizedGeometricDist.from_logits(halt_logits)
            recorded = {"all_logits": logits, HALT: dist.stop_probabilities}
            answer, exit_layer = scan_answers(rule, {**recorded, **inputs})
        else:
            logits, halts, exit_layer = self.early_exits(hidden, mask, inputs)
            answer = logits[-1]
            dist = GeneralizedGeometricDist(halts)
        loss = None
        if labels is not None:
            loss = task_loss(answer, torch.as_tensor(labels, device=self.device))
        out = self.output(logits, dist)
        return replace(out, loss=loss, answer=answer, exit_layer=exit_layer)

    def output(self, logits: Tensor, dist: GeneralizedGeometricDist) -> PonderOutput:
        """Make the output of layers' logits (layers, batch, num_labels), without answers or loss.

        dist: when to halt, over the same layers.
        """
        batch, layers = dist.stop_probabilities.shape
        return PonderOutput(
            logits=logits,
            halt_probabilities=dist.stop_probabilities,
            model_halt_dist=dist,
            target_halt_dist=prior(self.config, batch, layers, self.device),
            passes=layers,
        )

    def with_training_loss(
        self, out: PonderOutput, labels: Tensor | Sequence[float]
    ) -> PonderOutput:
        """Return the output with the loss of train() and its two parts."""
        loss = PonderClassificationLoss(self.config.kl_penalty_factor, self.class_weights)
        losses = loss(out, labels)
        return replace(
            out,
            loss=losses["total_loss"],
            weighted_ce_loss=losses["weighted_ce_loss"],
            kl_loss=losses["kl_loss"],
        )

    def early_exits(
        self, hidden: Tensor, mask: Tensor | None, inputs: Inputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run until all have halted: logits and λ of the layers that ran, exit layers (batch,)."""
        zeros = torch.zeros(len(hidden), device=hidden.device)
        exit_layer = torch.zeros_like(zeros, dtype=torch.long)
        logits = [zeros[:, None].expand(-1, self.config.label_count)]
        halts = []
        for step in iter_layers(self, hidden, mask, inputs):
            logits.append(logits[-1].index_copy(0, step.rows, step.decision.answer))
            halts.append(zeros.index_copy(0, step.rows, step.decision.seen.signals[HALT]))
            exit_layer[step.rows] += 1
        return torch.stack(logits[1:]), torch.stack(halts, dim=1), exit_layer

    def all_exits(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run full depth: logits (layers, batch, num_labels), and those of λ, (batch, layers)."""
        pairs = []
        for states in layer_states(self, hidden, mask):
            pairs.append(self.pooled(states, mask))
        answering, halting = map(torch.stack, zip(*pairs, strict=True))  # (layers, batch, hidden)
        previous = torch.cat((torch.zeros_like(halting[:1]), halting[:-1]))
        halts = self.ponder(halting, previous).T
        if self.config.halt_normalization == "last_layer":
            halts = F.pad(halts[:, :-1], (0, 1), value=torch.inf)  # λ_N = 1
        return self.classifier(answering).float(), halts

    def pooled(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Pool a layer for the classifier and for the halting head, (batch, hidden) each."""
        if self.pooler is None:
            return hidden[:, 0], hidden[:, HALTING_TOKEN]
        pooled = self.pooler(pool(hidden, mask, self.config.pooler_input))
        return pooled, pooled

    def read(
        self, text: Tensor | Texts, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return ids, attention mask and segments, (batch, length) each, of texts or of ids.

        Raises UserError for ids without the second [CLS], and as `tokenize`.
        """
        if not isinstance(text, Tensor):
            return self.tokenize(text)
        if self.config.extra_tokens:
            second = text[:, HALTING_TOKEN : HALTING_TOKEN + 1]
            is_missing = second.numel() == 0
            if self.tokenizer is not None:
                is_missing |= bool((second != self.tokenizer.cls_token_id).any())
            if is_missing:
                raise UserError(
                    "input_ids lack the second [CLS]: insert it by with_halting_token, or give "
                    "texts; the model that AutoModelForSequenceClassification loads inserts it by "
                    "itself"
                )
        return text, attention_mask, token_type_ids

    def tokenize(self, texts: Texts) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, attention mask and segments, (batch, length) each.

        texts: a list, or a pair of lists. A pair is [CLS] [CLS] a [SEP] b [SEP], or
        [CLS] [CLS] a [SEP] [CLS] b [SEP], as PonderALBERT has it, with `cls_in_second_text`.

        Raises UserError without a tokenizer.
        """
        if self.tokenizer is None:
            raise UserError("the model has no tokenizer: give it one, or call it with token ids")
        first: Sequence[Any] = [texts] if isinstance(texts, str) else texts
        second = None
        if len(first) == 2 and not any(isinstance(part, str) for part in first):
            first, second = list(first[0]), list(first[1])
        if self.cls_in_second_text and second is not None:
            second = [self.tokenizer.cls_token + text for text in second]
        longest = min(self.tokenizer.model_max_length, self.config.max_position_embeddings)
        encoded = self.tokenizer(
            list(first),
            second,
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=longest - self.config.extra_tokens,
            return_token_type_ids=True,
            return_tensors="pt",
        ).to(self.device)
        ids = encoded["input_ids"]
        mask = encoded["attention_mask"]
        types = encoded["token_type_ids"]
        if self.config.extra_tokens:
            return with_halting_token(ids), with_halting_token(mask), with_halting_token(types)
        return ids, mask, types

    # The steps of depth: see EarlyExitModel.

    def layer_weights(self, layer: int) -> LayerWeights:
        return LayerWeights(group=0, exit=0)

    def embed(self, *text: Tensor | None) -> Tensor:
        """Embed as EarlyExitModel does, ids or words that have the second [CLS]."""
        return self.embedding_hidden_mapping_in(self.embeddings(*text))

    def layer_pass(self, hidden: Tensor, mask: Tensor | None, weights: LayerWeights) -> Tensor:
        return self.albert_layer(hidden, mask)

    def start(self, rule: AnyRule, batch: int, inputs: Inputs) -> ExampleState:
        """Start as EarlyExitModel does, with the halting token's previous state (batch, hidden)."""
        size = (batch, self.config.hidden_size)
        previous = torch.zeros(size, device=self.device, dtype=self.dtype)
        return super().start(rule, batch, inputs)._replace(model=previous)

    def layer_output(
        self, hidden: Tensor, mask: Tensor | None, weights: LayerWeights, state: ExampleState
    ) -> tuple[LayerOutput, State]:
        answering, halting = self.pooled(hidden, mask)
        halts = self.ponder(halting, state.model).sigmoid()
        if self.config.halt_normalization == "last_layer":
            halts = halts.masked_fill(state.depth + 1 == self.config.num_hidden_layers, 1.0)
        return LayerOutput(self.classifier(answering).float(), {HALT: halts}), halting


class PonderAlbertForSequenceClassification(PonderAlbertClassifier):
    """The classifier as transformers' pipelines and Trainer want one.

    Ids are as any tokenizer gives them: the second [CLS] is inserted where it is missing, and
    states have it. They are at most max_position_embeddings − 1. `logits` are the answers.
    """

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | Texts | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | Sequence[float] | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **states: bool | None,
    ) -> EarlyExitOutput:
        """Classify a batch; inputs as `PonderAlbertClassifier`'s, with or without second [CLS]."""
        words = input_ids if inputs_embeds is None else inputs_embeds
        reads_two = self.config.extra_tokens > 0
        if reads_two and isinstance(words, Tensor) and (words[:, :1] != words[:, 1:2]).any():
            if isinstance(input_ids, Tensor):
                input_ids = with_halting_token(input_ids)
            if attention_mask is not None:
                attention_mask = with_halting_token(attention_mask)
            if token_type_ids is not None:
                token_type_ids = with_halting_token(token_type_ids)
            if inputs_embeds is not None:
                inputs_embeds = with_halting_token(inputs_embeds.mT).mT
            if position_ids is not None:  # the others move on
                position_ids = torch.cat((position_ids[:, :1], position_ids + 1), dim=1)
        classify: Any = super().forward  # HF's `capture_outputs` adds `return_dict`
        out = classify(
            input_ids,
            attention_mask,
            token_type_ids,
            labels,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **states,
        )
        answer = out.logits[-1] if out.answer is None else out.answer
        return EarlyExitOutput(
            loss=out.loss,
            logits=answer,
            exit_layer=out.exit_layer,
            all_logits=out.logits if self.training or states.get("output_all_exits") else None,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )


AutoModelForSequenceClassification.register(
    PonderAlbertConfig, PonderAlbertForSequenceClassification, exist_ok=True
)
