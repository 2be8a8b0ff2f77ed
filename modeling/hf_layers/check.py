"""Check that an encoder, run layer by layer, computes what transformers computes.

The check runs the weights at hand on two short texts. It finds an encoder that does more than call
its layers, a configuration that a family's steps do not honour, a decoder, and an encoder whose
answer depends on padding.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import UserError
from .steps import EncoderSteps, evaluating

# Lengths of the two texts. The shorter one comes padded, and goes on alone after the first layer.
LONGER, SHORTER = 9, 6
TOLERANCE = 1e-4  # of the largest state: float32 sums in another order are a hundredth of it


def check_encoder(encoder: PreTrainedModel, steps: EncoderSteps) -> None:
    """Raise UserError, with the reason, for an encoder that cannot run one layer at a time."""
    of_texts = "it does not run on two short texts alone: "
    with torch.no_grad(), evaluating(encoder), faults_as_reasons(of_texts):
        compare_runs(encoder, steps)


def check_head(head: nn.Module, encoder: PreTrainedModel) -> None:
    """Raise UserError for a classifier's head that reads more than its encoder's last states.

    head: takes finished states (batch, length, hidden) and a mask (batch, 1, 1, length) bool.
    """
    with torch.no_grad(), evaluating(head), evaluating(encoder), faults_as_reasons():
        ids, mask = two_texts(encoder)
        head(last_states(encoder, ids, mask), mask.bool()[:, None, None])


@contextmanager
def faults_as_reasons(introduction: str = "") -> Iterator[None]:
    """Turn what other code raises of arguments that do not fit into UserError.

    introduction: of the reason, in words.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{introduction}{type(error).__name__}: {reason}") from error


def compare_runs(encoder: PreTrainedModel, steps: EncoderSteps) -> None:
    """Run the texts layer by layer and by transformers; raise UserError where the two differ."""
    ids, mask = two_texts(encoder)
    expected = last_states(encoder, ids, mask)
    alone = last_states(encoder, ids[1:, :SHORTER], mask[1:, :SHORTER])
    other_ids = ids.clone()
    other_ids[0, LONGER - 1] = ids[0, 0]
    other = last_states(encoder, other_ids, mask)
    if torch.equal(other[0, 0], expected[0, 0]):
        raise UserError("the first token does not see those behind it, as in a decoder")
    if differ(expected[1, :SHORTER], alone[0]):
        raise UserError("a text's answer would depend on the padding behind it")
    hidden = steps.embed(encoder, input_ids=ids)
    extras = steps.extras(encoder, hidden, mask)
    hidden = steps.run_layer(encoder, 0, hidden, extras)
    staying = hidden[1:]  # after the first layer, the longer text exits
    extras_of_staying = steps.extras(encoder, staying, mask[1:])
    for number in range(1, encoder.config.num_hidden_layers):
        hidden = steps.run_layer(encoder, number, hidden, extras)
        staying = steps.run_layer(encoder, number, staying, extras_of_staying)
    hidden = steps.finish(encoder, hidden)
    staying = steps.finish(encoder, staying)
    if differ(hidden[0], expected[0]) or differ(hidden[1, :SHORTER], expected[1, :SHORTER]):
        raise UserError("its layers, run one at a time, give other states than the whole encoder")
    if differ(staying[0, :SHORTER], expected[1, :SHORTER]):
        raise UserError("a text's answer would depend on the others of its batch")


def two_texts(encoder: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Make two texts of different tokens, padded: ids and mask, (2, LONGER) each."""
    vocabulary = encoder.config.vocab_size
    padding = encoder.config.pad_token_id or 0
    numbers = torch.arange(2 * LONGER, device=encoder.device).view(2, LONGER)
    ids = (padding + 1 + numbers % (vocabulary - 1)) % vocabulary
    mask = torch.ones_like(ids)
    mask[1, SHORTER:] = 0
    ids[1, SHORTER:] = padding
    return ids, mask


def last_states(encoder: PreTrainedModel, ids: Tensor, mask: Tensor) -> Tensor:
    """Run transformers' own code: (batch, length, hidden)."""
    return encoder(input_ids=ids, attention_mask=mask)[0]


def differ(states: Tensor, expected: Tensor) -> bool:
    """Tell whether states differ by more than the order of sums can explain."""
    return bool((states - expected).abs().max() > TOLERANCE * expected.abs().max())
