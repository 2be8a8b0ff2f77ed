"""PonderALBERT: ALBERT that learns, layer by layer, how probable it is to stop here.

λ_n, the probability of halting at layer n for an example that has not halted before, is read from
a second [CLS] token; the classifier reads the first. With another `pooler_input` than two_cls there
is no second [CLS]: both heads read what ALBERT's pooler makes of a layer, and the classifier is one
linear layer, as in PALBERT. `distribution.py` says what λ means, `rules.py` which examples exit,
given λ.

Sources: PonderNet (Banino et al., 2021); PALBERT (Balagansky and Gavrilov, 2022) for the halting
head that sees two layers; the public PonderALBERT for the model and its names.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerBase,
    initialization as init,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from ..configuration import HEAD_WIDTH, PonderAlbertConfig
from ..depth import (
    EarlyExitModel,
    EarlyExitOutput,
    ExampleState,
    Extras,
    Inputs,
    LayerWeights,
    iter_layers,
    layer_states,
)
from ..encoder import (
    AlbertEmbeddings,
    AlbertPreTrainedModel,
    ExitLinear,
    Pooler,
    attention_mask_of,
    pool,
    refuse_tracing,
    wants_states,
)
from ..errors import UserError
from ..files import local_folder
from ..layer import AlbertLayer
from ..loading.configs import drop_foreign_keys, mode_in
from ..loading.tokenizers import load_tokenizer
from ..loading.weights import PONDER_NAMES, load_model
from ..losses import PonderClassificationLoss, task_loss
from ..rules import AnyRule, LayerOutput, State, scan_answers
from .distribution import GeneralizedGeometricDist, prior
from .rules import HALT

HALTING_TOKEN = 1  # position of the second [CLS]
Texts = Sequence[str] | tuple[Sequence[str], Sequence[str]]  # a list, or a pair of lists
Labels = Tensor | Sequence[float]  # (batch,): class ids, or values for regression


class TextInputs(NamedTuple):
    """What the model reads of a batch of texts, (batch, length) int64 each."""

    input_ids: Tensor
    attention_mask: Tensor | None
    token_type_ids: Tensor | None


@dataclass(repr=False)
class PonderOutput(SequenceClassifierOutput):
    """Output of the model; `layers` in a shape counts the layers that ran.

    Attributes:
        loss: scalar; in train() the total loss, in eval() the loss of the answers.
        logits: (layers, batch, num_labels). An example that has halted keeps its last ones.
        halt_probabilities: λ, (batch, layers); 0 once an example has halted.
        model_halt_dist: the halting distribution over these layers.
        target_halt_dist: its prior.
        passes: number of layer passes that the batch took.
        answer: (batch, num_labels), the answer of each example's exit; in eval() only.
        exit_layer: (batch,) int64, 1-based; in eval() only.
        weighted_ce_loss: scalar, one part of `loss`; in train() only.
        kl_loss: scalar, the other part; in train() only.
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
    """Insert the second [CLS] into (…, length), by repeating the first entry.

    It serves token ids, segment ids and attention masks alike; [CLS] must come first.

        ids = elbert.with_halting_token(tokenizer("A film.", return_tensors="pt").input_ids)
    """
    return torch.cat((values[..., :1], values), dim=-1)


def mlp(hidden: int, outputs: int) -> list[nn.Module]:
    """Make the layers of PonderALBERT's heads: (…, hidden) -> (…, outputs)."""
    return [ExitLinear(hidden, HEAD_WIDTH), nn.GELU(), ExitLinear(HEAD_WIDTH, outputs)]


class HaltingHead(nn.Sequential):
    """A head that gives the logit of λ, from a layer's state and the previous layer's.

    `mlp` is PonderALBERT's. `linear`, `linear_cat` and `linear_diff` are PALBERT's: as many tanh
    layers as `num_lambda_layers` says (none for 1), and an output layer. They read this layer's
    state, both states side by side, or the difference of the two.
    """

    def __init__(self, config: PonderAlbertConfig) -> None:
        architecture = config.lambda_layer_arch
        width = config.hidden_size
        if architecture == "linear_cat":
            width = 2 * config.hidden_size
        layers: list[nn.Module] = []
        if architecture == "mlp":
            layers = mlp(width, 1)
        else:
            if config.num_lambda_layers > 1:
                for _ in range(config.num_lambda_layers):
                    layers += [ExitLinear(width, width), nn.Tanh()]
            layers.append(ExitLinear(width, 1))
        # A Sequential of these layers has the published tensor names.
        super().__init__(*layers)
        self.architecture = architecture

    def forward(  # pyrefly: ignore[bad-override]  # a Sequential has one input
        self, state: Tensor, previous: Tensor
    ) -> Tensor:
        """Return the logits (…) of states (…, hidden); `previous` is 0 at the first layer."""
        if self.architecture == "linear_cat":
            state = torch.cat((state, previous), dim=-1)
        elif self.architecture == "linear_diff":
            state = state - previous
        return super().forward(state)[..., 0].float()


class SharedLayer(GradientCheckpointingLayer, AlbertLayer):
    """The one layer that is applied at every depth."""


class PonderAlbertClassifier(EarlyExitModel):
    """An ALBERT that learns when to halt; a classifier, or for num_labels = 1 a regression model.

        model = PonderAlbertClassifier.from_pretrained("albert/albert-base-v2", num_labels=2)
        out = model(["A moving, funny film.", "Not bad at all!"])
        out["halt_probabilities"]  # (batch, layers)

    The halting criterion is read from `config` at every call. All layers share their weights, so a
    model may have any number of layers.

    Args:
        config: PonderAlbertConfig, or a plain AlbertConfig, which gets the halting defaults.
        tokenizer: needed to call the model with texts.
        target_halt_probability: λ_p of the prior, in (0, 1]; default: the configuration's.

    Attributes:
        cls_in_second_text: whether a call with pairs of texts begins the second text with a [CLS]
            as well. PonderALBERT does so; run_glue.py does not.
    """

    config_class = PonderAlbertConfig
    config: PonderAlbertConfig  # pyrefly: ignore[bad-override-mutable-attribute]  # HF's is any
    tensor_names = PONDER_NAMES
    task_parts = ("classifier.", "ponder.")
    new_parts = ("pooler.", *task_parts)
    label_rows = r"^classifier\.(2\.)?(weight|bias)$"

    def __init__(
        self,
        config: AlbertConfig,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_halt_probability: float | None = None,
    ) -> None:
        if not isinstance(config, PonderAlbertConfig):
            values = drop_foreign_keys(config.to_dict(), PonderAlbertConfig)
            config = PonderAlbertConfig(**values)
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
            # A new model halts as its prior does; with λ = σ(0) = 1/2 it would at layer 1 or 2.
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
            name: a directory or a hub name; its tokenizer is loaded where there is one.
            target_halt_probability: λ_p of the prior, in place of the configuration's.
            config: configuration that replaces the one in `name`; `settings` and
                `target_halt_probability` are then ignored, since transformers' Auto classes add
                keys of their own.
            cache_dir: folder in which files of the hub are kept.
            dtype: number type of the weights; "auto", and the default with a `config`, is the
                configuration's.
            settings: configuration keys to change, for example num_hidden_layers.

        Raises:
            UserError: the checkpoint is not an ALBERT, or has several layers.
        """
        folder = local_folder(name, cache_dir=cache_dir)
        if config is not None:
            model, _ = load_model(cls, folder, config)
        else:
            if target_halt_probability is not None:
                settings["target_halt_probability"] = target_halt_probability
            model, _ = load_model(cls, folder, **settings)
        # Without a tokenizer the model still takes token ids; a call with texts will ask for one.
        with suppress(UserError):
            model.tokenizer = load_tokenizer(folder)
        if dtype == "auto" or (dtype is None and config is not None):
            dtype = model.config.dtype
        module: nn.Module = model  # HF wraps `to` in a way that type checkers cannot read
        module.to(dtype=getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        return model.eval()

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save configuration and weights as HF does, and the tokenizer where there is one."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(save_directory)

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | Texts | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Labels | None = None,
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
                the second [CLS] (`with_halting_token`), where the model reads one.
            attention_mask, token_type_ids, position_ids: (batch, length) int64, with ids.
            labels: (batch,) class ids, or values for regression.
            output_all_exits: in eval(), run full depth and return every layer's answer.
            draws: (batch,), the examples' uniform numbers for the criterion `sample`; drawn here by
                default.
            inputs_embeds: (batch, length, embedding), words in place of `input_ids`, which have the
                second [CLS] as well.
            output_hidden_states, output_attentions: run full depth and return those of every layer.

        Raises:
            UserError: texts come without a tokenizer, ids lack the second [CLS], or a key of the
                configuration is out of range.
        """
        if input_ids is not None:
            text = self.text_inputs(input_ids, attention_mask, token_type_ids)
            input_ids = text.input_ids
            attention_mask = text.attention_mask
            token_type_ids = text.token_type_ids
        mask = attention_mask_of(attention_mask)
        rule = self.config.exit_rule()
        if wants_states(self.config, output_hidden_states, output_attentions):
            output_all_exits = True
        runs_all_layers = self.training or output_all_exits or bool(rule.never_exits)
        embed = self.embed if runs_all_layers else self.first_states
        hidden = embed(input_ids, token_type_ids, position_ids, inputs_embeds)
        if self.training:
            logits, halt_logits = self.all_exits(hidden, mask)
            out = self.output(logits, GeneralizedGeometricDist.from_logits(halt_logits))
            return out if labels is None else self.with_training_loss(out, labels)
        inputs = {} if draws is None else {"draws": draws}
        if runs_all_layers:
            logits, halt_logits = self.all_exits(hidden, mask)
            dist = GeneralizedGeometricDist.from_logits(halt_logits)
            recorded = {"all_logits": logits, HALT: dist.stop_probabilities, **inputs}
            answer, exit_layer = scan_answers(rule, recorded)
        else:
            logits, halts, exit_layer = self.early_exits(hidden, mask, inputs)
            dist = GeneralizedGeometricDist(halts)
            answer = logits[-1]
        loss = None
        if labels is not None:
            loss = task_loss(answer, torch.as_tensor(labels, device=self.device))
        out = self.output(logits, dist)
        return replace(out, loss=loss, answer=answer, exit_layer=exit_layer)

    def output(self, logits: Tensor, dist: GeneralizedGeometricDist) -> PonderOutput:
        """Make an output without answers and loss.

        logits: (layers, batch, num_labels). dist: the halting distribution over these layers.
        """
        batch, layers = dist.stop_probabilities.shape
        return PonderOutput(
            logits=logits,
            halt_probabilities=dist.stop_probabilities,
            model_halt_dist=dist,
            target_halt_dist=prior(self.config, batch, layers, self.device),
            passes=layers,
        )

    def with_training_loss(self, out: PonderOutput, labels: Labels) -> PonderOutput:
        """Return the output with the loss of train() and its two parts."""
        compute_losses = PonderClassificationLoss(
            self.config.kl_penalty_factor,
            self.class_weights,
            self.config.kl_direction,
            self.config,
        )
        losses = compute_losses(out, labels)
        return replace(
            out,
            loss=losses["total_loss"],
            weighted_ce_loss=losses["weighted_ce_loss"],
            kl_loss=losses["kl_loss"],
        )

    def early_exits(
        self, hidden: Tensor, mask: Tensor | None, inputs: Inputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run layer by layer until all examples have exited.

        Args:
            hidden: (batch, length, hidden), the states at depth 0.
            mask: (batch, 1, 1, length) bool, or None without padding.
            inputs: of `config.own_inputs`.

        Returns:
            The logits of the layers that ran, (layers, batch, num_labels), where an example that
            has exited keeps those of its exit; λ, (batch, layers), 0 once an example has exited;
            and exit layers, (batch,).
        """
        zeros = torch.zeros(len(hidden), device=hidden.device)
        exit_layer = torch.zeros_like(zeros, dtype=torch.long)
        newest_logits = zeros[:, None].expand(-1, self.config.label_count)
        logits = []
        halts = []
        for step in iter_layers(self, hidden, mask, inputs):
            newest_logits = newest_logits.index_copy(0, step.rows, step.decision.answer)
            logits.append(newest_logits)
            halts.append(zeros.index_copy(0, step.rows, step.decision.seen.signals[HALT]))
            exit_layer[step.rows] += 1
        return torch.stack(logits), torch.stack(halts, dim=1), exit_layer

    def all_exits(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run full depth; arguments as `early_exits` takes them.

        Returns:
            The logits of all layers, (layers, batch, num_labels), and those of λ, (batch, layers).
        """
        answering_layers = []
        halting_layers = []
        for states in layer_states(self, hidden, mask):
            answering, halting = self.pool_heads(states, mask)
            answering_layers.append(answering)
            halting_layers.append(halting)
        answering = torch.stack(answering_layers)  # (layers, batch, hidden)
        halting = torch.stack(halting_layers)
        previous = torch.cat((torch.zeros_like(halting[:1]), halting[:-1]))
        halt_logits = self.ponder(halting, previous).T
        if self.config.halt_normalization == "last_layer":
            halt_logits = F.pad(halt_logits[:, :-1], (0, 1), value=torch.inf)  # λ_N = 1
        return self.classifier(answering).float(), halt_logits

    def pool_heads(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Pool a layer for the classifier and for the halting head: (batch, hidden) each."""
        if self.pooler is None:
            return hidden[:, 0], hidden[:, HALTING_TOKEN]
        pooled = self.pooler(pool(hidden, mask, self.config.pooler_input))
        return pooled, pooled

    def text_inputs(
        self, texts: Tensor | Texts, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> TextInputs:
        """Tokenise texts, or check ids (batch, length).

        Raises UserError for ids without the second [CLS], and as `tokenize` does.
        """
        if not isinstance(texts, Tensor):
            return self.tokenize(texts)
        if self.config.extra_tokens:
            refuse_tracing()
            second = texts[:, HALTING_TOKEN : HALTING_TOKEN + 1]
            is_missing = second.numel() == 0
            if self.tokenizer is not None:
                is_missing |= bool((second != self.tokenizer.cls_token_id).any())
            if is_missing:
                raise UserError(
                    "input_ids lack the second [CLS]: insert it by with_halting_token, or give "
                    "texts; the model that AutoModelForSequenceClassification loads inserts it by "
                    "itself"
                )
        return TextInputs(texts, attention_mask, token_type_ids)

    def tokenize(self, texts: Texts) -> TextInputs:
        """Tokenise texts or pairs, with the second [CLS] where the model reads one.

        A pair is [CLS] [CLS] a [SEP] b [SEP]; with `cls_in_second_text` it is [CLS] [CLS] a [SEP]
        [CLS] b [SEP], as in PonderALBERT.

        Args:
            texts: a list of texts, or a pair of lists of as many texts.

        Raises:
            UserError: the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise UserError("the model has no tokenizer: give it one, or call it with token ids")
        first: Sequence[Any] = [texts] if isinstance(texts, str) else texts
        second = None
        is_pair = len(first) == 2 and not any(isinstance(part, str) for part in first)
        if is_pair:
            first, second = [list(part) for part in first]
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
            ids = with_halting_token(ids)
            mask = with_halting_token(mask)
            types = with_halting_token(types)
        return TextInputs(ids, mask, types)

    # The steps of depth: see EarlyExitModel.

    def layer_weights(self, layer: int) -> LayerWeights:
        return LayerWeights(group=0, exit=0)

    def embed(self, *text: Tensor | None) -> Tensor:
        """Embed as EarlyExitModel does, ids or words that have the second [CLS]."""
        return self.embedding_hidden_mapping_in(self.embeddings(*text))

    def layer_pass(self, hidden: Tensor, extras: Extras, weights: LayerWeights) -> Tensor:
        return self.albert_layer(hidden, extras)

    def start(self, rule: AnyRule, batch: int, inputs: Inputs) -> ExampleState:
        """Start as EarlyExitModel does, with the halting token's previous state (batch, hidden)."""
        size = (batch, self.config.hidden_size)
        previous = torch.zeros(size, device=self.device, dtype=self.dtype)
        return super().start(rule, batch, inputs)._replace(model=previous)

    def layer_output(
        self, hidden: Tensor, mask: Tensor | None, weights: LayerWeights, state: ExampleState
    ) -> tuple[LayerOutput, State]:
        answering, halting = self.pool_heads(hidden, mask)
        halts = self.ponder(halting, state.model).sigmoid()
        if self.config.halt_normalization == "last_layer":
            is_last = state.depth + 1 == self.config.num_hidden_layers
            halts = halts.masked_fill(torch.as_tensor(is_last, device=halts.device), 1.0)
        return LayerOutput(self.classifier(answering).float(), {HALT: halts}), halting


class PonderAlbertForSequenceClassification(PonderAlbertClassifier):
    """A ponder model with the inputs and outputs that transformers' pipelines and Trainer expect.

    Token ids are those of any tokenizer, at most max_position_embeddings − 1 of them: the second
    [CLS] is inserted where it is missing. `logits`, (batch, num_labels), are the answers of the
    exits. Hidden states include the second [CLS].
    """

    @classmethod
    def from_pretrained(  # pyrefly: ignore[bad-override]  # HF's named options arrive in options
        cls,
        pretrained_model_name_or_path: str | Path | None = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Load a saved ponder model by HF's `from_pretrained`, with all of its options.

        Another checkpoint gives its encoder, as in `PonderAlbertClassifier.from_pretrained`.
        """
        source = pretrained_model_name_or_path
        if source is not None:
            folder = local_folder(source, cache_dir=options.get("cache_dir"), weights=False)
            if mode_in(folder) != PonderAlbertConfig.model_type:
                return super().from_pretrained(source, *arguments, **options)
        loaded: Any = super(PonderAlbertClassifier, cls).from_pretrained(
            source, *arguments, **options
        )
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info
        if source is not None:
            with suppress(UserError):
                model.tokenizer = load_tokenizer(source)
        return loaded

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | Texts | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Labels | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Any,
    ) -> EarlyExitOutput:
        """Classify a batch, with or without the second [CLS].

        Inputs and `options` are those of `PonderAlbertClassifier.forward`.
        """
        words = input_ids if inputs_embeds is None else inputs_embeds
        if isinstance(words, Tensor) and self.lacks_halting_token(words):
            if isinstance(input_ids, Tensor):
                input_ids = with_halting_token(input_ids)
            if attention_mask is not None:
                attention_mask = with_halting_token(attention_mask)
            if token_type_ids is not None:
                token_type_ids = with_halting_token(token_type_ids)
            if inputs_embeds is not None:
                inputs_embeds = with_halting_token(inputs_embeds.mT).mT
            if position_ids is not None:  # the other tokens move on by one
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
            **options,
        )
        has_all_logits = self.training or options.get("output_all_exits")
        return EarlyExitOutput(
            loss=out.loss,
            logits=out.logits[-1] if out.answer is None else out.answer,
            exit_layer=out.exit_layer,
            all_logits=out.logits if has_all_logits else None,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )

    def lacks_halting_token(self, words: Tensor) -> bool:
        """Tell whether the model reads a second [CLS] that ids, or embedded words, do not have."""
        refuse_tracing()
        has_second_cls = bool((words[:, :1] == words[:, 1:2]).all())
        return self.config.extra_tokens > 0 and not has_second_cls


class PonderAlbertModel(AlbertPreTrainedModel):
    """A ponder model's encoder at full depth, without heads, as transformers' AutoModel loads it.

    It reads a text's tokens as they are given: no second [CLS] is inserted.
    """

    config_class = PonderAlbertConfig
    config: PonderAlbertConfig  # pyrefly: ignore[bad-override-mutable-attribute]  # HF's is any
    _keys_to_ignore_on_load_unexpected = [r"^(classifier|ponder)\."]  # noqa: RUF012 (HF's own)

    def __init__(self, config: PonderAlbertConfig) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer = SharedLayer(config)
        has_pooler = config.pooler_input != "two_cls"
        self.pooler = Pooler(config, config.hidden_size) if has_pooler else None
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Run all layers; arguments are as `PonderAlbertClassifier.forward`'s.

        Returns:
            `last_hidden_state`, (batch, length, hidden), and `pooler_output`, (batch, hidden), or
            None for a model with two [CLS], whose heads read states.
        """
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        hidden = self.embedding_hidden_mapping_in(embedded)
        mask = attention_mask_of(attention_mask)
        for _ in range(self.config.num_hidden_layers):
            hidden = self.albert_layer(hidden, mask)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(pool(hidden, mask, self.config.pooler_input))
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)


AutoModel.register(PonderAlbertConfig, PonderAlbertModel, exist_ok=True)
AutoModelForSequenceClassification.register(
    PonderAlbertConfig, PonderAlbertForSequenceClassification, exist_ok=True
)
