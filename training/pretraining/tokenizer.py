"""A tokenizer for a text: SentencePiece's unigram model, as ALBERT's."""

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import normalizers

from modeling.errors import UserError
from runs.files import write_file
from training.pretraining.text import read_sentences

SPECIAL_PIECES = re.compile(r"<pad>|<unk>|\[CLS\]|\[SEP\]|\[MASK\]")


def train_tokenizer(
    paths: Sequence[str | Path], split: bool, vocab_size: int, lower_case: bool, directory: Path
) -> None:
    """Write `spiece.model` into `directory`; the text is normalised as it will be with it.

    Args:
        split: as `read_sentences`.
        vocab_size: pieces, special ones included.
        lower_case: for an uncased model.

    Raises UserError when the text is too small for `vocab_size` pieces.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=normalised_sentences(paths, split, lower_case),
            model_writer=model,
            vocab_size=vocab_size,
            pad_id=0,
            pad_piece="<pad>",
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols="[CLS],[SEP],[MASK]",
            character_coverage=0.99995,
            input_sentence_size=10_000_000,  # of a larger text, a sample
            shuffle_input_sentence=True,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].rpartition("] ")[2]
        raise UserError(f"no tokenizer of {vocab_size} pieces from this text: {reason}") from error
    write_file(directory / "spiece.model", lambda file: file.write(model.getvalue()))


def normalised_sentences(
    paths: Sequence[str | Path], split: bool, lower_case: bool
) -> Iterator[str]:
    """Yield sentences as ALBERT's tokenizer sees them, without special pieces."""
    steps: list[normalizers.Normalizer] = [normalizers.NFKD(), normalizers.StripAccents()]
    if lower_case:
        steps.append(normalizers.Lowercase())
    normalizer = normalizers.Sequence(steps)
    for _, text in read_sentences(paths, split):
        yield normalizer.normalize_str(SPECIAL_PIECES.sub(" ", text))
