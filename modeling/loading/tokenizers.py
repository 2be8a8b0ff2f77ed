"""The tokenizer beside a checkpoint, and the tokens of texts as every mode reads them.

A tokenizer is what its folder says: its tokenizer.json as it stands, or what its vocabulary and
tokenizer_config.json ask for. Training, evaluation, `Classifier` and the server all tokenise by
`encode_texts`, and a saved tokenizer.json gives the same tokens everywhere else.
"""

import base64
import json
import logging
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AutoTokenizer,
    BertTokenizer,
    CamembertTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)
from transformers.convert_slow_tokenizer import SentencePieceExtractor

from ..configuration import AdaptiveConfig
from ..errors import UserError
from ..files import find_file, local_folder, read_json

logger = logging.getLogger(__name__)

# By default HF's ALBERT tokenizer leaves out the segments.
MODEL_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
WORD_START = "▁"  # SentencePiece's mark of a piece that follows a space
# In this order.
TOKENIZER_FILES = (
    "tokenizer.json",
    "spiece.model",
    "vocab.txt",
    "merges.txt",
    "sentencepiece.bpe.model",
)

# The special tokens of each family, by the names that transformers has for them.
SPECIAL_TOKENS = {
    "ALBERT": {
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "[MASK]",
    },
    "BERT": {
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
    },
    "RoBERTa": {
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    },
}

# Classes of a tokenizer_config.json that a vocabulary file alone stands for. Of another class,
# transformers makes the tokenizer.
CLASSES_OF_FILE = {
    "spiece.model": ("AlbertTokenizer",),
    "vocab.txt": ("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer"),
    "merges.txt": ("RobertaTokenizer",),
    "sentencepiece.bpe.model": ("XLMRobertaTokenizer", "CamembertTokenizer"),
}
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")  # say nothing of the kind

# SentencePiece's numbers of a piece's type, and of a model's.
NORMAL_PIECE, UNKNOWN_PIECE, USER_DEFINED_PIECE = 1, 2, 4
UNIGRAM_MODEL = 1

# Python's `lower` writes a sigma that ends a word as ς, the tokenizers library as σ.
LOWER_CASE = [
    normalizers.Replace(Regex(r"(?<=[\p{Lu}\p{Ll}])Σ(?![\p{Lu}\p{Ll}])"), "ς"),
    normalizers.Lowercase(),
]

MOST_GROWTH = 1000  # characters that a normalizer may make of one; Unicode's own make 18

# Embeddings are padded to a multiple of this, at most: such a model has more than tokens.
VOCABULARY_MULTIPLE = 128

# A share of unknown tokens that means: this tokenizer was not made for these texts.
TELLING_UNKNOWN_SHARE = 0.03


class TextTokens(NamedTuple):
    """A text, or a pair, as a model reads it.

    Attributes:
        input_ids: token ids, special tokens included.
        token_type_ids: the segment of each token.
        is_truncated: whether the text was longer.
    """

    input_ids: list[int]
    token_type_ids: list[int]
    is_truncated: bool


def load_tokenizer(
    source: str | Path, do_lower_case: bool | None = None
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

        tokenizer = elbert.load_tokenizer("albert/albert-base-v2")

    A tokenizer.json is loaded as it is. Without one, the tokenizer is made from ALBERT's
    spiece.model (with the pieces of SentencePiece itself), BERT's vocab.txt or RoBERTa's
    merges.txt; case, accents, truncation side, length and class are then those in
    tokenizer_config.json. Every tokenizer also returns segments, `token_type_ids`. A saved
    tokenizer gives the same tokens wherever it is loaded.

    Args:
        source: folder of a model, or hub name.
        do_lower_case: whether to lower the case of texts, whatever the folder says. Default: what
            the folder says; where it says nothing, the case is lowered if no piece of the
            vocabulary has a capital letter.

    Raises:
        UserError: the folder has no tokenizer, the tokenizer does not work, or it is of a class
            that has no tokenizer.json.
    """
    source = local_folder(source, weights=False)
    name = next((name for name in TOKENIZER_FILES if find_file(source, name)), None)
    if name is None:
        hint = ""
        if find_file(source, "spiece.vocab"):
            hint = " (spiece.vocab only lists the pieces of a spiece.model)"
        raise UserError(
            f"no tokenizer in {source}: looked for {', '.join(TOKENIZER_FILES)}{hint}; give its "
            "directory with --tokenizer_name"
        )
    config_file = find_file(source, "tokenizer_config.json")
    config = read_json(config_file) if config_file else {}
    try:
        tokenizer = read_tokenizer(source, name, config)
        check_growth(tokenizer.backend_tokenizer.normalizer, source)
        change_case(tokenizer, source, name, config, do_lower_case)
        check_works(tokenizer)
    except (KeyboardInterrupt, UserError):
        raise
    except BaseException as error:  # damaged files fail in many ways, also by a panic in Rust
        if name.endswith(".json"):
            read_json(source / name)  # raises its own error where the file was cut
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{source}: {name} is damaged or cut (fetch it again), asks for code of its own, which "
            "is not run, or lacks the special pieces <pad>, <unk>, [CLS], [SEP] and [MASK] "
            f"({reason[:300]}); run_pretraining.py --train_tokenizer makes one from text"
        ) from error
    return tokenizer


# Reading the files.


def read_tokenizer(source: Path, name: str, config: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a folder from its file `name`.

    config: the content of its tokenizer_config.json.

    Raises UserError for a class without a tokenizer.json, and whatever a damaged file causes.
    """
    options: dict[str, Any] = {
        "model_input_names": MODEL_INPUTS,
        # Without this HF asks in the terminal whether to run a tokenizer's own code.
        "trust_remote_code": False,
    }
    class_name = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if name == "tokenizer.json":
        backend = tokenizers.Tokenizer.from_file(str(source / name))
    elif class_name and class_name not in (*CLASSES_OF_FILE[name], *GENERIC_CLASSES):
        backend = backend_of_class(source, class_name, options)
    elif name == "spiece.model":
        backend = sentencepiece_backend(source / name, bool(config.get("keep_accents", False)))
    else:
        path = find_file(source, "config.json")
        model_type = read_json(path).get("model_type") if path else None
        is_camembert = class_name == "CamembertTokenizer" or model_type == "camembert"
        tokenizer_class: Any = {
            "vocab.txt": BertTokenizer,
            "merges.txt": RobertaTokenizer,
            "sentencepiece.bpe.model": CamembertTokenizer if is_camembert else XLMRobertaTokenizer,
        }[name]
        backend = tokenizer_class.from_pretrained(str(source), **options).backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    options |= special_tokens(backend, config)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(
        str(source), tokenizer_object=backend, **options
    )
    frame_texts(tokenizer)
    return tokenizer


def backend_of_class(source: Path, class_name: str, options: dict[str, Any]) -> Any:
    """Make the tokenizer of the class that a folder names, by transformers.

    Raises UserError where transformers cannot, or the class has no tokenizer.json.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(source), **options)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{source}/tokenizer_config.json: tokenizer_class = {class_name}, which cannot be "
            f"loaded: {reason[:300]}"
        ) from error
    if not tokenizer.is_fast:
        raise UserError(
            f"{source}/tokenizer_config.json: tokenizer_class = {class_name}, which has no "
            "tokenizer.json: only tokenizers of the tokenizers library can be used"
        )
    return tokenizer.backend_tokenizer


def special_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> dict[str, str]:
    """Find the special tokens that a folder does not name: those of the first family that fits."""
    for tokens in SPECIAL_TOKENS.values():
        named = {name: token for name, token in tokens.items() if not config.get(name)}
        if all(backend.token_to_id(token) is not None for token in named.values()):
            return named
    return {}


def frame_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    """Let a tokenizer put [CLS] and [SEP] around texts where its file leaves that out."""
    backend = tokenizer.backend_tokenizer
    cls, sep = str(tokenizer.cls_token), str(tokenizer.sep_token)
    if backend.num_special_tokens_to_add(False) > 0:
        return
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, tokenizer.cls_token_id), (sep, tokenizer.sep_token_id)],
    )


def check_works(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise an error for a tokenizer that fails in use, or lacks special tokens."""
    tokenizer(["a", "b c"], ["d", ""])  # some damaged files only fail when they are used
    if None in (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise ValueError("some are missing")


# SentencePiece.


def sentencepiece_backend(path: Path, keep_accents: bool) -> tokenizers.Tokenizer:
    """Make the tokenizer that gives the pieces of SentencePiece itself, for text of any case.

    The text is first prepared as ALBERT's published code does: `` and '' become ", and accents are
    removed unless `keep_accents`.

    Raises UserError for a model of another algorithm than ALBERT's.
    """
    proto: Any = SentencePieceExtractor(str(path)).proto
    if proto.trainer_spec.model_type != UNIGRAM_MODEL:
        raise UserError(f"{path}: is no unigram model, as ALBERT's are; give its tokenizer.json")
    pieces = [piece.piece for piece in proto.pieces]
    unknown = next(i for i, piece in enumerate(proto.pieces) if piece.type == UNKNOWN_PIECE)
    backend = tokenizers.Tokenizer(
        models.Unigram(
            list(zip(pieces, piece_scores(proto), strict=True)),
            unk_id=unknown,
            byte_fallback=proto.trainer_spec.byte_fallback,
        )
    )
    backend.normalizer = sentencepiece_normalizer(proto.normalizer_spec, keep_accents)
    # Words are tokenised one by one, which is faster, unless a piece may span several.
    splits = WORD_START in pieces and not any(WORD_START in piece[1:] for piece in pieces)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        WORD_START, prepend_scheme="never", split=splits
    )
    backend.decoder = decoders.Metaspace(WORD_START, prepend_scheme="always")
    return backend


def piece_scores(proto: Any) -> list[float]:
    """List the scores by which SentencePiece chooses pieces; 0 for special ones.

    A user-defined piece has, for each of its bytes, the best score of all, minus 0.1. No piece is
    worse than the worst normal one, from which the score of unknown pieces follows.
    """
    normal_scores = [piece.score for piece in proto.pieces if piece.type == NORMAL_PIECE]
    best, worst = max(normal_scores), min(normal_scores)
    scores = []
    for piece in proto.pieces:
        if piece.type == NORMAL_PIECE:
            scores.append(piece.score)
        elif piece.type == USER_DEFINED_PIECE:
            scores.append(max(len(piece.piece.encode()) * best - 0.1, worst))
        else:
            scores.append(0.0)
    return scores


def sentencepiece_normalizer(spec: Any, keep_accents: bool) -> normalizers.Normalizer:
    """Make the normalizer of ALBERT's published code and of a SentencePiece model.

    spec: the model's normalizer_spec.
    """
    spaces = normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " ")
    steps: list[normalizers.Normalizer] = [
        spaces,
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not keep_accents:
        steps.extend([normalizers.NFKD(), normalizers.Replace(Regex(combining_marks()), "")])
        if "nfkc" in spec.name:
            # What NFKD took apart: SentencePiece joins it, the tokenizers library does not.
            steps.append(normalizers.NFC())
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    steps.extend([spaces, normalizers.Strip()])
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    return normalizers.Sequence(steps)


def combining_marks() -> str:
    """Write the class of all characters that Unicode combines with the one before them.

    These are what ALBERT's published code removes; StripAccents of the tokenizers library also
    removes vowels, for example of Hindi and Thai.
    """
    marks = [number for number in range(0x110000) if unicodedata.combining(chr(number))]
    ranges = []
    for _, run in groupby(enumerate(marks), key=lambda item: item[1] - item[0]):
        numbers = [number for _, number in run]
        ranges.append(f"{chr(numbers[0])}-{chr(numbers[-1])}")
    return f"[{''.join(ranges)}]"


# Case.


def change_case(
    tokenizer: PreTrainedTokenizerFast,
    source: Path,
    name: str,
    config: dict[str, Any],
    do_lower_case: bool | None,
) -> None:
    """Let a tokenizer lower the case of texts, or keep it, as the caller or the folder says.

    A line of the log tells where the caller overrules the folder, or the folder says nothing.

    Args:
        source, name: the folder, and the file that the tokenizer was made from.
        config: the content of its tokenizer_config.json.
        do_lower_case: see `load_tokenizer`.
    """
    backend = tokenizer.backend_tokenizer
    if name in ("tokenizer.json", "merges.txt", "sentencepiece.bpe.model"):
        said = lowers_case(backend)
    else:
        said = config.get("do_lower_case")
    wanted = do_lower_case if do_lower_case is not None else said
    if wanted is None:
        wanted = not has_capitals(backend)
        if wanted:
            logger.info("%s: no piece of %s has a capital letter: lower-cased", source, name)
    elif said is not None and wanted != said:
        logger.warning(
            "%s: its tokenizer %s; do_lower_case = %s overrides that",
            source,
            "lowers the case of texts" if said else "keeps the case of texts",
            wanted,
        )
    if wanted != lowers_case(backend):
        backend.normalizer = with_case(backend.normalizer, wanted)
    tokenizer.init_kwargs["do_lower_case"] = wanted


def lowers_case(backend: tokenizers.Tokenizer) -> bool:
    """Tell whether a tokenizer lowers the case of texts."""
    return backend.normalizer is not None and "A" not in backend.normalizer.normalize_str("A")


def has_capitals(backend: tokenizers.Tokenizer) -> bool:
    """Tell whether any piece but special ones, [CLS] or <s>, has a capital letter."""
    return any(
        piece != piece.lower() for piece in backend.get_vocab() if not piece.startswith(("[", "<"))
    )


def with_case(
    normalizer: normalizers.Normalizer | None, lower: bool
) -> normalizers.Normalizer | None:
    """Return the normalizer that lowers the case of texts, or keeps it, and else does the same."""
    steps = list(normalizer_steps(normalizer))
    bert_steps = [step for step in steps if isinstance(step, normalizers.BertNormalizer)]
    for step in bert_steps:
        step.lowercase = lower
    if not lower:
        steps = [step for step in steps if not is_case_step(step)]
    elif not bert_steps:
        # After characters are taken apart: of an accented capital, some of the parts have no case.
        place = max((i + 1 for i, step in enumerate(steps) if takes_apart(step)), default=0)
        steps[place:place] = LOWER_CASE
    if len(steps) == 1:
        return steps[0]
    return normalizers.Sequence(steps) if steps else None


def normalizer_steps(normalizer: Any) -> Iterator[Any]:
    """Yield the steps of a normalizer, those of sequences among them one by one."""
    if isinstance(normalizer, normalizers.Sequence):
        for step in normalizer:
            yield from normalizer_steps(step)
    elif normalizer is not None:
        yield normalizer


def is_case_step(step: normalizers.Normalizer) -> bool:
    """Tell whether a step is one of those that lower the case."""
    return isinstance(step, normalizers.Lowercase) or str(step) == str(LOWER_CASE[0])


def takes_apart(step: normalizers.Normalizer) -> bool:
    """Tell whether a step takes characters apart, or removes parts."""
    return isinstance(step, normalizers.NFKD | normalizers.NFD | normalizers.StripAccents)


# Saving.


def save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, folder: str | Path, config: AdaptiveConfig
) -> None:
    """Save a trained model's tokenizer, whose tokenizer.json then truncates texts by itself.

    config: of the model; a ponder model's texts have a second [CLS], which is no part of the file.
    """
    fast: Any = tokenizer
    longest = min(tokenizer.model_max_length, config.max_position_embeddings)
    fast.backend_tokenizer.enable_truncation(
        longest - config.extra_tokens, direction=tokenizer.truncation_side
    )
    try:
        tokenizer.save_pretrained(str(folder))
    finally:
        fast.backend_tokenizer.no_truncation()


# Limits.


def check_vocab_size(tokenizer: PreTrainedTokenizerBase, source: str, config: AlbertConfig) -> None:
    """Raise UserError for a tokenizer with pieces that have no embeddings.

    source: of the tokenizer, for the error.
    """
    # A vocabulary may leave numbers out.
    largest_id = max(tokenizer.get_vocab().values(), default=0)
    pieces = max(len(tokenizer), 1 + largest_id)
    if pieces > config.vocab_size:
        raise UserError(
            f"{source}: the tokenizer has {pieces} tokens, but vocab_size is {config.vocab_size}"
        )
    if (Path(source) / "tokenizer.json").exists():  # it alone is read
        return
    padded_size = -(-pieces // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    vocabulary = Path(source) / "vocab.txt"
    if vocabulary.is_file() and config.vocab_size > padded_size:
        facts = f"{vocabulary} has {pieces} tokens, and vocab_size is {config.vocab_size}"
        tell_cut_file(vocabulary, facts, "the lost words are unknown")
    merges = Path(source) / "merges.txt"
    if merges.is_file() and (lost := pieces_without_a_merge(merges, tokenizer)):
        facts = f"{merges} lacks the merges of {lost} of {pieces} tokens"
        tell_cut_file(merges, facts, "words fall into other pieces than the model has learnt")


def tell_cut_file(path: Path, facts: str, effect: str) -> None:
    """Raise UserError for a file of a tokenizer that was cut; warn of one that may have been.

    Every line stands for itself, so that what is left of a cut file can be read, and the model
    answers to what it makes of the texts.
    """
    if not path.read_bytes().endswith(b"\n"):
        raise UserError(f"{facts}: it was cut within its last line; fetch it again")
    logger.warning("%s: if it was cut, fetch it again: %s", facts, effect)


def pieces_without_a_merge(path: Path, tokenizer: PreTrainedTokenizerBase) -> int:
    """Count the tokens that no line of a merges.txt makes; 0 for as few as may be placeholders."""
    merges = {line.replace(" ", "") for line in path.read_text("utf-8").splitlines()}
    added = tokenizer.get_added_vocab()
    unmade = sum(
        len(piece) > 1 and piece not in merges and piece not in added
        for piece in tokenizer.get_vocab()
    )
    return unmade if unmade > VOCABULARY_MULTIPLE else 0


def check_growth(normalizer: normalizers.Normalizer | None, source: str | Path) -> None:
    """Raise UserError for a normalizer whose replacements could blow a text up.

    Thirty steps that each double a letter make 10⁹ of it. source: of the tokenizer.
    """
    growth = 1.0
    for step in normalizer_steps(normalizer):
        growth *= step_growth(json.loads(step.__getstate__()))
    if growth > MOST_GROWTH:
        raise UserError(
            f"{source}: the tokenizer's normalizer may make {growth:.0f} characters of one, and "
            f"at most {MOST_GROWTH} are allowed: its replacements would fill the memory"
        )


def step_growth(step: Mapping[str, Any]) -> float:
    """Return how many characters a step of a normalizer makes of one, at most.

    step: as tokenizer.json has it. Unicode's own steps count as 1.
    """
    if step["type"] == "Prepend":
        return 1 + len(step["prepend"])
    if step["type"] == "Precompiled":
        return longest_replacement(base64.b64decode(step["precompiled_charsmap"]))
    if step["type"] != "Replace" or not step["content"]:
        return 1
    text = step["pattern"].get("String")
    if text:
        return max(1, len(step["content"]) / len(text))
    return 1 + len(step["content"])  # a regular expression may match between any two characters


def longest_replacement(charsmap: bytes) -> int:
    """Return the characters of the longest text in SentencePiece's table of replacements.

    It is the size of a trie in four bytes, the trie, and the texts, with a NUL behind each.
    """
    trie_size = int.from_bytes(charsmap[:4], "little")
    texts = charsmap[4 + trie_size :].split(b"\0")
    return max(len(text.decode(errors="replace")) for text in texts)


class UnknownTokens:
    """A count of unknown tokens, which warns once where the tokenizer does not fit the texts.

    least: unknown tokens from which their share means something. Of a few texts it may be high.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, least: int = 1) -> None:
        self.tokenizer = tokenizer
        self.least = least
        self.unknown_id = tokenizer.unk_token_id
        self.special_ids = np.array([*({*tokenizer.all_special_ids} - {self.unknown_id})])
        self.tokens = self.unknown = 0
        self.has_warned = False

    def counts(self, ids: Sequence[int] | np.ndarray) -> tuple[int, int]:
        """Count the tokens of a text but special ones, and those of them that are unknown."""
        row = np.asarray(ids)
        tokens = len(row) - int(np.isin(row, self.special_ids).sum())
        return tokens, int((row == self.unknown_id).sum())

    def totals(self, texts: Iterable[Sequence[int] | np.ndarray]) -> tuple[int, int]:
        """Count the tokens of all texts as `counts` does."""
        counts = [self.counts(ids) for ids in texts]
        return sum(tokens for tokens, _ in counts), sum(unknown for _, unknown in counts)

    def shares(self, texts: Iterable[Sequence[int] | np.ndarray]) -> np.ndarray:
        """Return each text's share of unknown tokens: (texts,); 0 of a text without any token."""
        counts = np.array([self.counts(ids) for ids in texts], dtype=float).reshape(-1, 2)
        return counts[:, 1] / np.maximum(counts[:, 0], 1)

    def count(self, texts: Iterable[Sequence[int] | np.ndarray]) -> None:
        """Count the token ids of texts; warn where too many of all so far are unknown."""
        if self.has_warned:
            return
        for ids in texts:
            tokens, unknown = self.counts(ids)
            self.tokens += tokens
            self.unknown += unknown
        self.has_warned = (
            self.unknown >= self.least and self.unknown > TELLING_UNKNOWN_SHARE * self.tokens
        )
        if self.has_warned:
            logger.warning(
                "%.1f%% of the tokens are unknown (%s), so the tokenizer does not fit the texts: "
                "compare their case and language with its vocabulary's (--do_lower_case)",
                100 * self.unknown / self.tokens,
                self.tokenizer.unk_token,
            )


# Tokenising.


class FramePart(NamedTuple):
    """A place in a tokenised text: of a special token, or of the tokens of a text.

    Attributes:
        text: number of the text, 0 or 1; None: a special token stands here.
        token: the id of the special token.
        segment: token_type_id of the place.
    """

    text: int | None
    token: int
    segment: int


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    max_length: int,
    segments: int = 2,
) -> list[TextTokens]:
    """Tokenise texts, or pairs of texts, as transformers does with truncation.

    transformers also keeps what it cuts off, which of long pairs takes memory that grows with the
    product of their lengths.

    Args:
        pairs: the second texts. None: there are none.
        max_length: tokens at which a text is cut, special ones included.
        segments: the segment types that the model knows.

    Raises:
        UserError: the model has too few segment types for pairs, or `max_length` has no room for
            the special tokens.
    """
    backend = plain_backend(tokenizer)
    frame = text_frame(backend, pairs is not None, segments)
    special_count = sum(part.text is None for part in frame)
    room = max_length - special_count
    if room < 0:
        raise UserError(
            f"{max_length} tokens per text: special tokens alone take {special_count}; allow more"
        )
    keeps_end = tokenizer.truncation_side == "left"
    columns = [texts] if pairs is None else [texts, pairs]
    encoded = [backend.encode_batch_fast(list(x), add_special_tokens=False) for x in columns]
    answers = []
    for row in zip(*encoded, strict=True):
        whole = [encoding.ids for encoding in row]
        lengths = truncated_lengths([len(ids) for ids in whole], room)
        parts = []
        for ids, length in zip(whole, lengths, strict=True):
            parts.append(ids[len(ids) - length :] if keeps_end else ids[:length])
        is_truncated = sum(map(len, parts)) < sum(map(len, whole))
        answers.append(framed(frame, parts, is_truncated))
    return answers


def plain_backend(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return the tokenizers library's tokenizer, which from now on neither cuts nor pads."""
    fast: Any = tokenizer
    backend = fast.backend_tokenizer
    if backend.truncation is not None:
        backend.no_truncation()
    if backend.padding is not None:
        backend.no_padding()
    return backend


def text_frame(backend: Any, is_pair: bool, segments: int) -> list[FramePart]:
    """Find where a tokenizer puts special tokens around a text, or around two.

    segments: the segment types that the model knows. Raises UserError where they are too few.
    """
    probe = backend.encode("a", "a" if is_pair else None)
    frame: list[FramePart] = []
    for token, segment, text in zip(probe.ids, probe.type_ids, probe.sequence_ids, strict=True):
        goes_on = text is not None and frame and frame[-1].text == text
        if not goes_on:
            frame.append(FramePart(text, token, segment))
    largest_segment = max(part.segment for part in frame)
    if largest_segment >= segments:
        raise UserError(
            f"the tokenizer gives segment {largest_segment} to a text, but type_vocab_size = "
            f"{segments}: the model knows fewer segments, so it cannot read such texts"
        )
    return frame


def truncated_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Return how many tokens are kept of one or two texts: of two, the longer is cut first."""
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    first, second = lengths
    shorter = min(first, second, room // 2)
    return [shorter, room - shorter] if first <= second else [room - shorter, shorter]


def framed(frame: Sequence[FramePart], parts: Sequence[list[int]], truncated: bool) -> TextTokens:
    """Put the tokens of one text, or of two, into their frame."""
    input_ids: list[int] = []
    token_type_ids: list[int] = []
    for place in frame:
        tokens = [place.token] if place.text is None else parts[place.text]
        input_ids.extend(tokens)
        token_type_ids.extend([place.segment] * len(tokens))
    return TextTokens(input_ids, token_type_ids, truncated)
