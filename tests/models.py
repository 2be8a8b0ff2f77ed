"""Small models of the three modes, batches for them, and the states of their layers."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from elbert import (
    AlbertActConfig,
    AlbertActModel,
    PonderAlbertClassifier,
    PonderAlbertConfig,
    cpu_packing,
)
from modeling.cpu_packing import packed_copy
from modeling.depth import layer_states
from modeling.encoder import attention_mask_of

SMALL = {
    "vocab_size": 40,
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
}


def hidden_states(model, ids, mask=None, types=None) -> list[torch.Tensor]:
    """State at depth 0, 1, ... N."""
    with torch.no_grad():
        start = model.embed(ids, types)
        return [start, *layer_states(model, start, attention_mask_of(mask))]


def assert_near(actual, expected, tolerance: float = 1e-5) -> None:
    """Within an absolute tolerance, whatever the size."""
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def packed_on(has_avx512: bool) -> Callable[[torch.nn.Module], torch.nn.Module]:
    """`packed_copy` as on such a processor; without AVX-512, plain products of all rows."""

    def packed(model: torch.nn.Module) -> torch.nn.Module:
        with patch.multiple(cpu_packing, HAS_AVX512=has_avx512, UNPACKED_MIN_ROWS=0):
            return packed_copy(model)

    return packed


WAYS = {"plain": lambda model: model, "AVX-512": packed_on(True), "no AVX-512": packed_on(False)}
either_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def mask_of(lengths: list[int]) -> torch.Tensor:
    """1 for tokens, 0 for padding: (batch, longest)."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def padded_batch(lengths: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random ids and segments of texts of these lengths, zeros after them: (batch, longest)."""
    generator, mask = torch.Generator().manual_seed(seed), mask_of(lengths)
    ids = torch.randint(4, 40, mask.shape, generator=generator) * mask
    types = torch.randint(0, 2, mask.shape, generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def ponder_batch(lengths: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Beginning with two [CLS]."""
    batch = padded_batch(lengths, seed)
    batch["input_ids"][:, :2] = 2
    return batch


def one_of(batch: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """Example `row` alone, without padding."""
    length = int(batch["attention_mask"][row].sum())
    return {name: tensor[row : row + 1][..., :length] for name, tensor in batch.items()}


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = "[PAD] [UNK] [CLS] [SEP] the cat sat on mat a dog ran my cool new text".split()
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=SMALL["max_position_embeddings"],
    )


def tiny_ponder(seed: int = 0, **keys) -> PonderAlbertClassifier:
    """Random weights with halting probabilities that differ between examples and layers."""
    torch.manual_seed(seed)
    model = PonderAlbertClassifier(PonderAlbertConfig(**{**SMALL, **keys}), word_tokenizer())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and "LayerNorm" not in name and "layer_norm" not in name:
                parameter.normal_(std=0.3)
    return model.eval()


def tiny_act(seed: int = 0, model_class: type = AlbertActModel, **keys):
    """In float64, with weights large enough that tokens differ in their updates."""
    torch.manual_seed(seed)
    config = AlbertActConfig(**{**SMALL, "classifier_dropout_prob": 0.0, **keys})
    model = model_class(config).double().eval()
    head = getattr(model, "albert", model).encoder.albert_layer.act.dense
    with torch.no_grad():
        for parameter in model.parameters():
            # Large biases would lead all tokens to one state.
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.05))
        head.weight.mul_(2.0)
        head.bias.fill_(-0.5)
    return model


def direct_pmf(stops: list[float]) -> list[float]:
    """p_n = λ_n Π (1 − λ_j), multiplied out in Python's double precision."""
    alive, pmf = 1.0, []
    for stop in stops:
        pmf.append(alive * stop)
        alive *= 1 - stop
    return pmf
