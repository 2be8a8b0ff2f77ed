"""The tokenizer beside a checkpoint."""

from pathlib import Path
from typing import Any

from transformers import AlbertTokenizer, AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from ..errors import UserError
from .files import find_file, local_folder

# HF's ALBERT tokenizer leaves the segments out by itself.
MODEL_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
WORD_START = "▁"  # SentencePiece's mark of a piece that follows a space


def load_tokenizer(source: str | Path, do_lower_case: bool = True) -> PreTrainedTokenizerBase:
    """Load the tokenizer beside a checkpoint: saved whole, ALBERT's spiece.model, or a vocab.txt.

    A tokenizer saved whole (`tokenizer.json`) keeps its own casing. All answer with segments,
    `token_type_ids`, and once saved they do so wherever they are loaded. Raises UserError when
    there is none.
    """
    given = {
        "model_input_names": MODEL_INPUTS,
        "trust_remote_code": False,  # nor ask in the terminal whether to
    }
    source = local_folder(source, weights=False)
    whole = ("tokenizer.json", "tokenizer_config.json")
    if all(find_file(source, name) for name in whole):
        return read_tokenizer(AutoTokenizer, " or ".join(whole), source, **given)
    for name, kind in (("spiece.model", AlbertTokenizer), ("vocab.txt", BertTokenizer)):
        if find_file(source, name):
            return read_tokenizer(kind, name, source, do_lower_case=do_lower_case, **given)
    raise UserError(
        f"no tokenizer in {source}: looked for tokenizer.json, spiece.model and vocab.txt; "
        "give its directory with --tokenizer_name"
    )


def read_tokenizer(
    kind: type, name: str, source: str | Path, **given: Any
) -> PreTrainedTokenizerBase:
    """Load a tokenizer of that kind that works; UserError for file `name` where it does not."""
    try:
        tokenizer = kind.from_pretrained(str(source), **given)
        check_pair(tokenizer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # damaged files fail in every way, also by a panic of Rust's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{source}: {name} is damaged, asks for code of its own, which is not run, or lacks "
            f"the special pieces <pad>, <unk>, [CLS], [SEP] and [MASK] ({reason[:300]}); "
            "run_pretraining.py --train_tokenizer makes one from text"
        ) from error
    return tokenizer


def check_pair(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError unless two texts become what a model reads."""
    encoded = tokenizer(["a", "b c"], ["d", ""], return_token_type_ids=True)
    for ids, segments in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True):
        if len(ids) != len(segments) or not {*segments} <= {0, 1}:
            raise ValueError(f"it makes segments {segments} of a pair")
    for name in ("pad", "cls", "sep"):
        if not isinstance(getattr(tokenizer, f"{name}_token_id"), int):
            raise ValueError(f"it has no {name}_token")
