"""ELBERT: ALBERT with an exit classifier after every layer pass (Xie et al., 2021).

Training weighs the losses of all exits; inference stops each example where its exit rule fires.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from modeling.albert import AlbertBackbone, AlbertPreTrainedModel, attention_mask_of, steady_weights
from modeling.configuration import ElbertConfig, ExitRule
from modeling.elbert.exits import ExitClassifier, decide, empty_history, pool, remember, scan


@dataclass
class ElbertOutput(ModelOutput):
    """What the model answers.

    loss: scalar; train(): joint loss over all exits, eval(): loss at the exit taken.
    logits: (batch, num_labels), of the exit taken (train(): of the last layer).
    exit_layer: (batch,) int64, 1-based.
    all_logits: (num_layers, batch, num_labels), when training or asked for.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    exit_layer: torch.Tensor | None = None
    all_logits: torch.Tensor | None = None

    @property
    def answer(self) -> torch.Tensor:
        """`logits` under the name that a ponder model's output has for them."""
        return self.logits


def task_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, or squared error for a single output; mean over the batch."""
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.squeeze(-1), labels.float())
    return F.cross_entropy(logits, labels)


def joint_loss(exit_losses: torch.Tensor, exit_weights: torch.Tensor | None = None) -> torch.Tensor:
    """Weighted sum of the N exits' losses (N,).

    `equal` (no weights): the plain sum. `dyn`, with W = exit_weights (N − 1,):
    Σᵢ<N σ(Wᵢ)·Lᵢ + (N − Σᵢ σ(Wᵢ))·L_N, so that the weights add up to N.
    """
    if exit_weights is None:
        return exit_losses.sum()
    weights = exit_weights.sigmoid()
    return (weights * exit_losses[:-1]).sum() + (len(exit_losses) - weights.sum()) * exit_losses[-1]


class ElbertForSequenceClassification(AlbertPreTrainedModel):
    """Sequence classification (num_labels > 1) or regression (num_labels = 1) with early exit.

    `config` is read at every call: changing `config.exit_thres` takes effect at once. An example's
    answer does not depend on the batch that it shares.
    """

    config_class = ElbertConfig
    supports_gradient_checkpointing = True
    config: ElbertConfig

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__(config)
        self.albert = AlbertBackbone(config)
        encoder = self.albert.encoder
        if config.num_exit_layers == 1:
            encoder.exit_out_layer = ExitClassifier(config)
        else:
            encoder.exit_out_layers = nn.ModuleList(
                ExitClassifier(config) for _ in range(config.num_exit_layers)
            )
        # The published code kept W outside the model and lost it on saving.
        self.exit_weights = None
        if config.weight_name == "dyn":
            self.exit_weights = nn.Parameter(torch.full((config.num_exit,), config.w_init))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and self.exit_weights is not None:
            init.constant_(self.exit_weights, self.config.w_init)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.albert.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.albert.embeddings.word_embeddings = value

    def layer_groups(self) -> Sequence[nn.Module]:
        """The modules that make a layer pass."""
        return self.albert.encoder.albert_layer_groups

    def exit_heads(self) -> Sequence[nn.Module]:
        """The modules that make an exit."""
        encoder = self.albert.encoder
        return getattr(encoder, "exit_out_layers", None) or [encoder.exit_out_layer]

    def exit_of(self, layer: int) -> ExitClassifier:
        """The classifier after layer `layer` (0-based); layers share them in equal runs."""
        count = self.config.num_exit_layers
        if count == 1:
            return self.albert.encoder.exit_out_layer
        run = self.config.num_hidden_layers // count
        return self.albert.encoder.exit_out_layers[min(layer // run, count - 1)]

    def answer(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, layer: int | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Answers and their scores, (batch, num_labels) float32 each, of the exit after `layer`.

        hidden (batch, length, hidden); `layer` is 0-based, one for all or (batch,) on the host.
        """
        pooler = self.albert.pooler
        if isinstance(layer, int) or self.config.num_exit_layers == 1:
            return self.exit_of(layer if isinstance(layer, int) else 0)(hidden, mask, pooler)
        logits = hidden.new_empty(len(hidden), self.config.num_labels, dtype=torch.float)
        scores = torch.empty_like(logits)
        for depth in layer.unique().tolist():
            rows = layer == depth
            part = None if mask is None else mask[rows]
            logits[rows], scores[rows] = self.exit_of(depth)(hidden[rows], part, pooler)
        return logits, scores

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_all_exits: bool = False,
    ) -> ElbertOutput:
        """Classify a batch.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length) int64, as HF ALBERT.
            labels: (batch,) class ids, or values for regression.
            output_all_exits: in eval(), run full depth and return every layer's answer too.
        """
        hidden = self.embed(input_ids, token_type_ids)
        mask = attention_mask_of(attention_mask)
        if self.training:
            all_logits = self.all_exits(hidden, mask)
            loss = None if labels is None else self.training_loss(all_logits, labels)
            last = torch.full((len(hidden),), len(all_logits), device=hidden.device)
            return ElbertOutput(loss, all_logits[-1], last, all_logits)
        all_logits = None
        if output_all_exits:
            all_logits = self.all_exits(hidden, mask)
            exit_layer = scan(self.exit_rule(), all_logits)
            logits = all_logits[exit_layer - 1, torch.arange(len(hidden), device=hidden.device)]
        else:
            logits, exit_layer = self.early_exit(hidden, mask)
        loss = None if labels is None else task_loss(logits, labels)
        return ElbertOutput(loss, logits, exit_layer, all_logits)

    @steady_weights()
    def all_exits(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Every layer's answer, (layers, batch, num_labels), each classifier applied once."""
        pooled = []
        for layer in range(self.config.num_hidden_layers):
            hidden = self.albert.layer_pass(hidden, mask, layer)
            pooled.append(pool(hidden, mask, self.config.pooler_input))
        exits = [self.exit_of(layer) for layer in range(len(pooled))]
        starts = [i for i, exit_ in enumerate(exits) if i == 0 or exit_ is not exits[i - 1]]
        pieces = torch.stack(pooled).tensor_split(starts[1:])
        answers = [
            exits[start].classify(piece, self.albert.pooler)
            for piece, start in zip(pieces, starts, strict=True)
        ]
        return torch.cat(answers)

    def training_loss(self, all_logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = torch.stack([task_loss(logits, labels) for logits in all_logits])
        return joint_loss(losses, self.exit_weights)

    # The steps of depth, which early exit and depth batching put together.

    def embed(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """State at depth 0, (batch, length, hidden)."""
        return self.albert.embed(input_ids, token_type_ids)

    def group_of(self, layer: int) -> int:
        """Number of the weights that layer `layer` (0-based) uses."""
        return self.albert.group_of(layer)

    def layer_pass(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, layer: int
    ) -> torch.Tensor:
        """State after layer `layer` (0-based) from the state before it."""
        return self.albert.layer_pass(hidden, mask, layer)

    def exit_rule(self) -> ExitRule:
        """The rule as the configuration has it now."""
        return ExitRule.from_config(self.config)

    def start(self, batch: int) -> dict[str, torch.Tensor]:
        """What the exit rule remembers at depth 0: tensors with the batch as first dimension."""
        config = self.config
        history = empty_history(config.num_hidden_layers, batch, config.num_labels, self.device)
        return {"history": history.transpose(0, 1)}

    def check_exit(
        self,
        rule: ExitRule,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        layer: int | torch.Tensor,
        state: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """The exit after layer `layer` (0-based, one for all or (batch,) on the host).

        Returns its logits (batch, num_labels), who exits (batch,) bool, and the new state.
        """
        logits, scores = self.answer(hidden, mask, layer)
        history = remember(state["history"].transpose(0, 1), scores)
        # Layers that nobody has reached are cut off, where that is known without asking the device.
        done = decide(rule, history[: layer + 1] if isinstance(layer, int) else history)
        last = layer == self.config.num_hidden_layers - 1
        if last is not False:
            done = done | torch.as_tensor(last, device=done.device)
        return logits, done, {"history": history.transpose(0, 1)}

    @steady_weights()
    def early_exit(
        self, hidden: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pass by pass until every example's rule has fired; finished examples leave the batch.

        Returns logits (batch, num_labels) and exit layers (batch,).
        """
        rule, batch = self.exit_rule(), len(hidden)
        state = self.start(batch)
        answers = torch.empty(batch, self.config.num_labels, device=hidden.device)
        exit_layer = torch.empty(batch, dtype=torch.long, device=hidden.device)
        rows = torch.arange(batch, device=hidden.device)  # of the batch, still in `hidden`
        for layer in range(self.config.num_hidden_layers):
            hidden = self.layer_pass(hidden, mask, layer)
            logits, done, state = self.check_exit(rule, hidden, mask, layer, state)
            leaves = done.tolist()  # the step's one wait for the device
            if not any(leaves):
                continue
            answers[rows[done]] = logits[done]
            exit_layer[rows[done]] = layer + 1
            if all(leaves):
                break
            keep = ~done
            hidden, rows = hidden[keep], rows[keep]
            mask = None if mask is None else mask[keep]
            state = {name: tensor[keep] for name, tensor in state.items()}
        return answers, exit_layer


AutoModelForSequenceClassification.register(
    ElbertConfig, ElbertForSequenceClassification, exist_ok=True
)
