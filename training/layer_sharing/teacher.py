"""What the student follows: the hidden states of a BERT."""

from collections.abc import Iterable
from pathlib import Path
from typing import cast

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from modeling.cpu_packing import packed_copy
from modeling.depth import layer_states
from modeling.encoder import attention_mask_of
from modeling.errors import UserError
from modeling.exits.model import ElbertForSequenceClassification
from modeling.loading.tokenizers import load_tokenizer
from modeling.loading.weights import TensorDict, load_model
from training.pretraining.settings import SharingSettings


def followed_layers(passes: int, layers: int) -> list[int]:
    """List the teacher's layers that states 0 … `passes` follow, halves upwards.

    Layer 0 is the embeddings.
    """
    # round(k·L/N) in whole numbers; Python's round would round halves to even.
    return [(2 * k * layers + passes) // (2 * passes) for k in range(passes + 1)]


class StateTeacher:
    """A BERT, and those of its states that a student of N passes follows.

    Args:
        source: the BERT's folder or hub name.
        passes: N; None for as many as the teacher has layers.

    Attributes:
        model: the BERT as an untied ELBERT, with its weights as they are.
        packed: a packed copy, which computes the states.
        followed: the layers whose states a student follows, N + 1 of them; 0: the embeddings.
    """

    def __init__(
        self, source: str | Path, passes: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        model, _ = load_model(ElbertForSequenceClassification, source)
        nn.Module.to(model, device)  # HF's own is not annotated
        self.device = device
        self.model = model.eval()
        self.config = model.config
        self.packed = packed_copy(self.model)
        layers = model.albert.num_layers
        self.passes = passes or layers
        self.followed = followed_layers(self.passes, layers)

    @torch.no_grad()
    def states(self, inputs: TensorDict) -> Tensor:
        """Compute what states 0 … N are to be: (N + 1, batch, length, hidden).

        inputs: input_ids, token_type_ids and, where there is padding, attention_mask.
        """
        hidden = self.packed.embed(inputs["input_ids"], inputs["token_type_ids"])
        mask = attention_mask_of(inputs.get("attention_mask"))
        states = [hidden, *layer_states(self.packed, hidden, mask)]
        return torch.stack([states[layer] for layer in self.followed])

    def variances(self, batches: Iterable[TensorDict]) -> Tensor:
        """Measure Σ over features of E[x²] − E[x]², over the real tokens of a text: (N + 1,)."""
        tokens = 0
        sums = torch.zeros(())  # of x: (N + 1, hidden)
        square_sums = torch.zeros(())  # of x², also over the features: (N + 1,)
        for batch in batches:
            inputs = cast(TensorDict, send_to_device(batch, self.device))
            states = self.states(inputs)
            mask = inputs.get("attention_mask")
            real = states.flatten(1, 2) if mask is None else states[:, mask.bool()]
            real = real.double()  # (N + 1, tokens, hidden)
            tokens += real.shape[1]
            sums = sums + real.sum(1)
            square_sums = square_sums + real.square().sum((1, 2))
        return (square_sums / tokens - (sums / tokens).square().sum(1)).float()


def load_teacher(
    settings: SharingSettings, passes: int | None, device: torch.device
) -> tuple[StateTeacher, PreTrainedTokenizerBase]:
    """Load the BERT of --model_name_or_path, for a student of so many passes, and its tokenizer.

    Raises UserError for a BERT without positions for --max_seq_length or without segment types.
    """
    source, length = settings.student.model_name_or_path, settings.text.max_seq_length
    teacher = StateTeacher(source, passes, device)
    longest = teacher.config.max_position_embeddings
    if length > longest:
        raise UserError(f"--max_seq_length {length}: the teacher has {longest} positions")
    if teacher.config.type_vocab_size < 2:
        raise UserError(
            f"--model_name_or_path {source}: has one segment type, and examples are pairs; give a "
            "BERT or an ELECTRA"
        )
    return teacher, load_tokenizer(source, settings.run.do_lower_case or None)
