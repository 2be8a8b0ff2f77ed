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

# HF's ALBERT tokenizer leaves the segments out by itself.
MODEL_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
WORD_START = "▁"  # SentencePiece's mark of a piece that follows a space


def load_tokenizer(source: str | Path, do_lower_case: bool = True) -> PreTrainedTokenizerBase:
    """Load the tokenizer beside a checkpoint.

    It is saved whole, or ALBERT's spiece.model, BERT's vocab.txt, or RoBERTa's merges.txt.
    A tokenizer saved whole (`tokenizer.json`) keeps its own casing. All answer with segments,
    `token_type_ids`, and once saved they do so wherever they are loaded. Raises UserError when
    there is none, or none that works.
    """
    source = local_folder(source, weights=False)
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
        "trust_remote_code": False,  # nor ask in the terminal whether to trust its code
    }
    if name != "tokenizer.json":
        options["do_lower_case"] = do_lower_case
    try:
        tokenizer: Any = classes[name].from_pretrained(str(source), **options)
        tokenizer(["a", "b c"], ["d", ""])
        if None in (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
            raise ValueError("some are missing")
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
