"""The tokenizer beside a checkpoint."""

from pathlib import Path

from transformers import AlbertTokenizer, AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from ..errors import UserError
from .files import find_file, hub_problem

# HF's ALBERT tokenizer leaves the segments out by itself.
MODEL_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]


def load_tokenizer(
    source: str | Path, do_lower_case: bool = True, cache_dir: str | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer beside a checkpoint: one saved whole, ALBERT's spiece.model, or a vocab.txt.

    A tokenizer saved whole (`tokenizer.json`) keeps its own casing. All answer with segments,
    `token_type_ids`, and once saved they do so wherever they are loaded. Raises UserError when
    there is none.
    """
    given = {"cache_dir": cache_dir, "model_input_names": MODEL_INPUTS}
    if not Path(source).is_dir() and hub_problem():
        given["local_files_only"] = True  # without a minute of retries
    whole = ("tokenizer.json", "tokenizer_config.json")
    if all(find_file(source, name, cache_dir) for name in whole):
        return AutoTokenizer.from_pretrained(str(source), **given)
    for name, kind in (("spiece.model", AlbertTokenizer), ("vocab.txt", BertTokenizer)):
        if find_file(source, name, cache_dir):
            try:
                return kind.from_pretrained(str(source), do_lower_case=do_lower_case, **given)
            except (TypeError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"{source}: {name} is damaged, or lacks the special pieces <pad>, <unk>, "
                    f"[CLS], [SEP] and [MASK] ({str(error).splitlines()[0]}); run_pretraining.py "
                    "--train_tokenizer makes one from text"
                ) from error
    raise UserError(
        f"no tokenizer in {source}: looked for tokenizer.json, spiece.model and vocab.txt; "
        "give its directory with --tokenizer_name"
    )
