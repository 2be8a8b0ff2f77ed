"""The tokenizer beside a checkpoint."""

from pathlib import Path
from typing import Any

from transformers import (
    AlbertTokenizer,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerBase,
    RobertaTokenizer,
)

from elbert_base.errors import UserError
from elbert_base.files import find_file, local_folder

# By default HF's ALBERT tokenizer leaves out the segments.
MODEL_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
WORD_START = "▁"  # SentencePiece's mark of a piece that follows a space


def load_tokenizer(source: str | Path, do_lower_case: bool = True) -> PreTrainedTokenizerBase:
    """Load the tokenizer beside a checkpoint.

    It is one that HF saved whole (`tokenizer.json`), or made from ALBERT's spiece.model, BERT's
    vocab.txt or RoBERTa's merges.txt. All of them return segments, `token_type_ids`, and once saved
    they do so wherever they are loaded.

    Args:
        source: a directory or a hub name.
        do_lower_case: whether to lower the case of a text; a tokenizer saved whole keeps its own
            choice.

    Raises:
        UserError: there is no tokenizer, or it does not work.
    """
    source = local_folder(source, weights=False)
    # In the order in which they are looked for.
    classes: dict[str, Any] = {
        "spiece.model": AlbertTokenizer,
        "vocab.txt": BertTokenizer,
        "merges.txt": RobertaTokenizer,
    }
    if find_file(source, "tokenizer_config.json"):
        classes = {"tokenizer.json": AutoTokenizer} | classes
    name = next((name for name in classes if find_file(source, name)), None)
    if name is None:
        raise UserError(
            f"no tokenizer in {source}: looked for tokenizer.json, spiece.model, vocab.txt and "
            "merges.txt; give its directory with --tokenizer_name"
        )
    options: dict[str, Any] = {
        "model_input_names": MODEL_INPUTS,
        # Without this HF asks in the terminal whether to run a tokenizer's own code.
        "trust_remote_code": False,
    }
    if name != "tokenizer.json":
        options["do_lower_case"] = do_lower_case
    try:
        tokenizer: Any = classes[name].from_pretrained(str(source), **options)
        tokenizer(["a", "b c"], ["d", ""])  # some damaged files only fail when they are used
        if None in (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
            raise ValueError("some are missing")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # damaged files fail in many ways, also by a panic in Rust
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{source}: {name} is damaged, asks for code of its own, which is not run, or lacks "
            f"the special pieces <pad>, <unk>, [CLS], [SEP] and [MASK] ({reason[:300]}); "
            "run_pretraining.py --train_tokenizer makes one from text"
        ) from error
    return tokenizer
