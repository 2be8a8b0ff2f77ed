"""Tokenizers: what their folder says, SentencePiece's own pieces, the same tokens everywhere."""

import io
import json
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
import transformers
from hypothesis import assume, example, given, settings, strategies as st
from transformers.convert_slow_tokenizer import SentencePieceExtractor

from elbert import (
    Classifier,
    ElbertConfig,
    PonderAlbertConfig,
    UserError,
    load_config,
    load_tokenizer,
)
from glue.features import encode
from glue.splits import Example
from modeling.loading.tokenizers import (
    check_vocab_size,
    encode_texts,
    longest_replacement,
    save_tokenizer,
)
from tests.conftest import edit_json, tiny_config, tiny_model, write

LANGUAGES = [
    "the quick brown fox (jumps) over a well-known dog. it costs £3,500.25 – or €4!",
    "café naïve ångström ﬁne ½ ① Ⅷ. tiếng việt có dấu",
    "한국어 문장은 여기 있습니다. 안녕하세요 세계",
    "日本語のテキストがここにあります。ガギグ パピプ",
    "ελληνικά κείμενα με τόνους",
    "हिन्दी में एक वाक्य लिखा है",
    "ภาษาไทยเป็นภาษาที่สวยงาม",
    "العربية نصٌّ مع حركاتٍ",
    "привет мир ёлка",
]
USER_DEFINED = ["(", ")", '"', "-", ".", "–", "£", "€"]  # as ALBERT's published spm_train command
ODD = "\t\n\u3000\u00a0\u200b\u200d\ufeff\u00ad\u2028\x0b\x85``''İſßΣ…\"▁😀\u0301\ud7a3\u1161"
WORDS = " ".join(LANGUAGES).split()
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(WORDS),
        st.sampled_from(WORDS).map(str.upper),
        st.sampled_from(ODD),
        st.sampled_from([" ", "   ", ".", "(", "h" * 50, "[UNK]", "word "]),
        st.text(max_size=3),
    ),
    max_size=12,
).map("".join)


def published(text: str, keep_accents: bool) -> str:
    """Prepare a text as ALBERT's published code does for SentencePiece."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    if not keep_accents:
        text = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in text if not unicodedata.combining(char))
    return text.lower()


@pytest.fixture(scope="module")
def spm(tmp_path_factory) -> Path:
    """A spiece.model of several languages, with user-defined pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(published(text, True) for text in LANGUAGES * 5),
        model_writer=model,
        vocab_size=260,
        hard_vocab_limit=False,
        pad_id=0,
        pad_piece="<pad>",
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
        user_defined_symbols=USER_DEFINED,
        minloglevel=2,
    )
    folder = tmp_path_factory.mktemp("spm")
    (folder / "spiece.model").write_bytes(model.getvalue())
    return folder


BERT_PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the a dog café cafe ##s dogs The Dog ß . , ( ) h ##h"


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    """A BERT's vocab.txt, with capitals and accents."""
    folder = tmp_path_factory.mktemp("bert")
    write(folder / "vocab.txt", "\n".join(BERT_PIECES.split()) + "\n")
    return folder


@pytest.fixture(scope="module")
def roberta(tmp_path_factory) -> Path:
    """A RoBERTa's vocab.json and merges.txt: bytes alone."""
    folder = tmp_path_factory.mktemp("roberta")
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces += tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = json.dumps({piece: number for number, piece in enumerate(pieces)})
    write(folder / "vocab.json", vocabulary)
    write(folder / "merges.txt", "#version: 0.2\n")
    return folder


# SentencePiece itself.


@pytest.mark.parametrize("keep_accents", [False, True])
def test_an_albert_has_the_pieces_of_sentencepiece_itself(keep_accents, spm, tmp_path):
    google = sentencepiece.SentencePieceProcessor(model_file=str(spm / "spiece.model"))
    write(tmp_path / "spiece.model", (spm / "spiece.model").read_bytes())
    write(tmp_path / "tokenizer_config.json", json.dumps({"keep_accents": keep_accents}))
    tokenizer = load_tokenizer(tmp_path)

    @settings(max_examples=60, deadline=None, database=None)
    @given(TEXTS)
    @example("The u.s. is a Well-known (large) model")
    @example("he trains.the end")
    @example('"a dog"  (3.5)')
    @example("각 한국어 ガギグ हिन्दी ที่")
    def agrees(text):
        # Python and Rust know other versions of Unicode; special tokens are not SentencePiece's.
        assume(all(unicodedata.category(char) not in ("Cn", "Cs", "Lm") for char in text))
        assume("[" not in text)
        # A final sigma, and accents of characters that stand for several, are handled more simply.
        assume(
            "Σ" not in text and not (keep_accents and not unicodedata.is_normalized("NFKC", text))
        )
        theirs = google.encode(published(text, keep_accents))
        ours = tokenizer(text, add_special_tokens=False).input_ids
        if ours != theirs:  # of two ways with the same score either may be chosen
            scores = [sum(google.get_score(piece) for piece in ids) for ids in (ours, theirs)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4)
            pieces = ["".join(google.id_to_piece(ids)) for ids in (ours, theirs)]
            assert pieces[0] == pieces[1]

    agrees()
    assert {*tokenizer.all_special_tokens} == {"[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>"}


def test_a_sigma_that_ends_a_word_is_the_one_that_python_writes(spm):
    tokenizer = load_tokenizer(spm, do_lower_case=True)
    google = sentencepiece.SentencePieceProcessor(model_file=str(spm / "spiece.model"))
    for text in ("ΤΌΝΟΥΣ", "ΤΌΝΟΥΣ. ΣΤΟΝ ΤΌΝΟΣ", "Σ"):
        theirs = google.encode(published(text, False))
        assert tokenizer(text, add_special_tokens=False).input_ids == theirs


def test_a_model_of_another_algorithm_is_refused(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LANGUAGES), model_writer=model, vocab_size=240, model_type="bpe",
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    write(tmp_path / "spiece.model", model.getvalue())
    with pytest.raises(UserError, match="no unigram model"):
        load_tokenizer(tmp_path)


# The same tokens at every door.


@pytest.mark.parametrize(
    ("kind", "side", "mode"),
    [
        ("spm", "left", PonderAlbertConfig),
        ("bert", "right", ElbertConfig),
        ("roberta", "left", ElbertConfig),
    ],
)
def test_a_text_has_the_same_tokens_at_every_door(kind, side, mode, request, tmp_path):
    """Training and evaluation, `Classifier` and the server, transformers and the ONNX examples."""
    folder = request.getfixturevalue(kind)
    source = tmp_path / "source"
    source.mkdir()
    for file in folder.iterdir():
        write(source / file.name, file.read_bytes())
    write(source / "tokenizer_config.json", json.dumps({"truncation_side": side}))
    tokenizer = load_tokenizer(source)
    longest = 12
    config = tiny_config(max_position_embeddings=longest + 4, vocab_size=len(tokenizer))
    config = mode(**{name: config.to_dict()[name] for name in TINY_KEYS})
    tokenizer.model_max_length = longest
    saved = tmp_path / "saved"
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(saved)
    save_tokenizer(tokenizer, saved, config)

    classifier = Classifier(saved)
    auto = transformers.AutoTokenizer.from_pretrained(saved)
    alone = tokenizers.Tokenizer.from_file(str(saved / "tokenizer.json"))
    assert auto.truncation_side == side

    @settings(max_examples=25, deadline=None, database=None)
    @given(TEXTS, st.none() | TEXTS)
    @example("review:" + " " * 3000 + "a dog", None)
    @example("the\u200b" * 100 + "end", "h" * 100)
    def agrees(text, pair):
        answer = encode([Example("0", text, pair, 0)], tokenizer, longest, config)
        ids, segments = answer.input_ids[0].tolist(), answer.token_type_ids[0].tolist()
        assert classifier.encode([text if pair is None else (text, pair)]) == [(ids, segments)]
        cut = {"truncation": True, "max_length": longest - config.extra_tokens}
        # In lists: given alone, transformers takes an empty second text for none.
        columns = [[text]] if pair is None else [[text], [pair]]
        theirs = auto(*columns, return_token_type_ids=True, **cut)
        assert config.with_extra_tokens(theirs.input_ids[0]) == ids
        assert config.with_extra_tokens(theirs.token_type_ids[0]) == segments
        assert config.with_extra_tokens(alone.encode(text, pair).ids) == ids
        [whole] = auto(*columns).input_ids
        assert answer.truncated.tolist() == [len(whole) > longest - config.extra_tokens]

    agrees()


TINY_KEYS = (
    "vocab_size embedding_size hidden_size num_hidden_layers num_attention_heads "
    "intermediate_size max_position_embeddings"
).split()


def test_long_pairs_take_memory_in_proportion_to_their_length(bert):
    """transformers keeps every combination of what it cuts off of both: here 10 million."""
    tokenizer = load_tokenizer(bert)
    text = "the dog " * 12_500
    [tokens] = encode_texts(tokenizer, [text], [text], 11)
    assert (len(tokens.input_ids), tokens.is_truncated) == (11, True)


# What a folder says.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": False, "tokenize_chinese_chars": False},
        {"do_lower_case": False, "tokenizer_class": "ElectraTokenizer", "model_max_length": 7},
        {"do_lower_case": False, "truncation_side": "left"},
        {"do_lower_case": False, "cls_token": "the", "padding_side": "left"},
    ],
)
def test_a_tokenizer_is_what_its_folder_says(options, bert, tmp_path):
    """As transformers reads it, before and after it is saved."""
    write(tmp_path / "vocab.txt", (bert / "vocab.txt").read_bytes())
    if options:
        write(tmp_path / "tokenizer_config.json", json.dumps(options))
    defaults = {} if options else {"do_lower_case": False}  # the vocabulary has capitals
    twin = transformers.BertTokenizer.from_pretrained(tmp_path, **defaults)
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.save_pretrained(tmp_path / "saved")
    text = "The Café: Dogs, (ß) 日本 dogs"
    for loaded in (tokenizer, load_tokenizer(tmp_path / "saved")):
        assert loaded(text, text).input_ids == twin(text, text).input_ids
        assert loaded.truncation_side == twin.truncation_side
        assert loaded.padding_side == twin.padding_side
        if "model_max_length" in options:
            assert loaded.model_max_length == 7


@pytest.mark.parametrize("kind", ["spm", "bert"])
@pytest.mark.parametrize("own", [True, False])
def test_a_caller_overrides_the_case_and_the_log_says_so(kind, own, request, tmp_path, caplog):
    folder = request.getfixturevalue(kind)
    for file in folder.iterdir():
        write(tmp_path / file.name, file.read_bytes())
    write(tmp_path / "tokenizer_config.json", json.dumps({"do_lower_case": own}))
    for source in (tmp_path, tmp_path / "saved"):  # spiece.model or vocab.txt; tokenizer.json
        for asked in (None, own):
            tokenizer = load_tokenizer(source, asked)
            same_case = tokenizer("The Dog").input_ids == tokenizer("the dog").input_ids
            assert same_case == own
            assert not caplog.records
        other = load_tokenizer(source, not own)
        same_case = other("The Dog").input_ids == other("the dog").input_ids
        assert same_case == (not own)
        assert f"do_lower_case = {not own} overrides" in caplog.text
        caplog.clear()
        tokenizer.save_pretrained(tmp_path / "saved")


def test_where_a_folder_says_nothing_its_vocabulary_decides_the_case(bert, spm, tmp_path):
    def lowers(folder: Path) -> bool:
        tokenizer = load_tokenizer(folder)
        return tokenizer("The Dog").input_ids == tokenizer("the dog").input_ids

    assert lowers(spm)  # trained on lower-cased text
    assert not lowers(bert)
    write(tmp_path / "vocab.txt", (bert / "vocab.txt").read_text().replace("The\nDog\n", ""))
    assert lowers(tmp_path)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "vocab.txt", "spiece.model", "tokenizer_config.json"]
)
def test_what_stands_in_place_of_a_tokenizers_file_is_named(name, bert, tmp_path):
    write(tmp_path / "vocab.txt", (bert / "vocab.txt").read_bytes())
    write(tmp_path / name, LFS)
    with pytest.raises(UserError, match=rf"{name} is a pointer of Git LFS.*git lfs pull"):
        load_tokenizer(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("../blobs/0123")
    with pytest.raises(UserError, match=rf"{name} is a link to \.\./blobs/0123"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "spm"])
def test_a_tokenizers_file_that_was_cut_is_to_be_fetched_again(kind, request, tmp_path):
    load_tokenizer(request.getfixturevalue(kind)).save_pretrained(tmp_path)
    content = (tmp_path / "tokenizer.json").read_bytes()
    write(tmp_path / "tokenizer.json", content[: len(content) // 2])
    with pytest.raises(UserError, match=r"tokenizer\.json: not valid JSON.*fetch it again"):
        load_tokenizer(tmp_path)


def test_a_class_without_a_tokenizer_json_is_refused(bert, tmp_path):
    write(tmp_path / "vocab.txt", (bert / "vocab.txt").read_bytes())
    options = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    write(tmp_path / "tokenizer_config.json", json.dumps(options))
    with pytest.raises(UserError, match="tokenizer_class = BertJapaneseTokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("has_frame", [True, False])
def test_a_tokenizer_json_alone_is_a_tokenizer(has_frame, bert, tmp_path):
    whole = transformers.BertTokenizer.from_pretrained(bert).backend_tokenizer
    if not has_frame:
        whole.post_processor = tokenizers.processors.Sequence([])
    whole.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    twin = transformers.BertTokenizer.from_pretrained(bert)
    pair = ("the dog", "a dog")
    assert tokenizer(*pair).input_ids == twin(*pair).input_ids
    assert tokenizer(*pair).token_type_ids == twin(*pair).token_type_ids
    assert tokenizer.pad_token == "[PAD]"


def test_a_tokenizer_json_counts_as_it_stands(bert, tmp_path):
    """transformers makes it anew by its class, with what the class does by default."""
    transformers.BertTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.normalizer = tokenizers.normalizers.Replace("dog", "the")
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = load_tokenizer(tmp_path)("The dog").input_ids
    assert ids == backend.encode("The dog").ids
    edit_json(tmp_path / "tokenizer_config.json", truncation_side="left", model_max_length=5)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.truncation_side, tokenizer.model_max_length) == ("left", 5)


# What does not fit.


def test_a_share_of_unknown_tokens_is_told(bert, caplog):
    tokenizer = load_tokenizer(bert)
    for text, is_told in (("the dog. " * 40, False), ("the Dog strange", True)):
        caplog.clear()
        encode([Example("0", text, None, 0)], tokenizer, 100, tiny_config())
        assert ("of the tokens are unknown ([UNK])" in caplog.text) == is_told


def test_limits_are_checked_before_a_text_is_read(bert, tmp_path):
    count = len(BERT_PIECES.split())
    tiny_model(vocab_size=count - 1).save_pretrained(tmp_path)
    load_tokenizer(bert).save_pretrained(tmp_path)
    words = f"the tokenizer has {count} tokens, but vocab_size is {count - 1}"
    with pytest.raises(UserError, match=words):
        Classifier(tmp_path)
    tiny_model(vocab_size=count, type_vocab_size=1).save_pretrained(tmp_path)
    classifier = Classifier(tmp_path)
    assert classifier("the dog")["label"]
    with pytest.raises(UserError, match="type_vocab_size = 1"):
        classifier(("the dog", "a dog"))
    with pytest.raises(UserError, match="special tokens alone take 3"):
        encode_texts(load_tokenizer(bert), ["a"], ["a"], 2)


REPLACE = tokenizers.normalizers.Replace
BOMBS = {
    "letters": [REPLACE("a", "aa")] * 30,
    "pieces": [REPLACE("ab", "ab" * 40), REPLACE("b", "c" * 30)],
    "expressions": [REPLACE(tokenizers.Regex("(?:)"), "a")] * 30,
    "a long prefix": [tokenizers.normalizers.Prepend("a" * 2000)],
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_normalizer_that_blows_texts_up_is_refused_before_a_text_is_read(kind, bert, tmp_path):
    backend = load_tokenizer(bert).backend_tokenizer
    backend.normalizer = tokenizers.normalizers.Sequence(BOMBS[kind])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="characters of one, and at most 1000 are allowed"):
        load_tokenizer(tmp_path)


def test_the_longest_replacement_of_sentencepiece_is_that_of_unicode(tmp_path):
    """NFKC makes eighteen characters of U+FDFA, and more of no other."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LANGUAGES * 5),
        model_writer=model,
        vocab_size=200,
        hard_vocab_limit=False,
        normalization_rule_name="nfkc",
        minloglevel=2,
    )
    path = tmp_path / "spiece.model"
    path.write_bytes(model.getvalue())
    charsmap = SentencePieceExtractor(str(path)).proto.normalizer_spec.precompiled_charsmap
    longest = max(
        len(unicodedata.normalize("NFKC", chr(number)))
        for number in range(0x110000)
        if not 0xD800 <= number < 0xE000
    )
    assert longest_replacement(charsmap) == longest == len(unicodedata.normalize("NFKC", "\ufdfa"))


@pytest.mark.parametrize(
    ("tokens", "end", "vocab_size", "expected"),
    [
        (300, "\n", 300, ""),
        (300, "", 300, ""),
        (300, "", 384, ""),  # padded to a multiple of 128
        (300, "\n", 385, "vocab.txt has 300 tokens, and vocab_size is 385: if it was cut"),
        (300, "", 385, "vocab.txt has 300 tokens, and vocab_size is 385: it was cut within"),
    ],
)
def test_a_vocabulary_that_was_cut_is_told(tokens, end, vocab_size, expected, tmp_path, caplog):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"word{number}" for number in range(tokens - len(words))]
    write(tmp_path / "vocab.txt", "\n".join(words) + end)
    write(tmp_path / "config.json", json.dumps({"model_type": "bert", "vocab_size": vocab_size}))
    tokenizer = load_tokenizer(tmp_path)
    config = load_config(tmp_path)
    if expected.endswith("within"):
        with pytest.raises(UserError, match=expected):
            check_vocab_size(tokenizer, str(tmp_path), config)
        return
    check_vocab_size(tokenizer, str(tmp_path), config)
    assert [expected in record.getMessage() for record in caplog.records] == [True] * bool(expected)


# How many merges are left, what follows the last, and words of the line about it.
@pytest.mark.parametrize(
    ("left", "end", "expected"),
    [
        (400, "\n", ""),
        (400, "", ""),
        (300, "\n", ""),  # as many tokens may be placeholders
        (200, "\n", "merges.txt lacks the merges of 200 of 661 tokens: if it was cut"),
        (200, "", "merges.txt lacks the merges of 200 of 661 tokens: it was cut within"),
    ],
)
def test_merges_that_were_cut_are_told(left, end, expected, tmp_path, caplog):
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pairs = [(first, second) for first in letters[:20] for second in letters[:20]]
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = [*special, *letters, *("".join(pair) for pair in pairs)]
    write(tmp_path / "vocab.json", json.dumps({word: place for place, word in enumerate(words)}))
    write(tmp_path / "merges.txt", "\n".join(" ".join(pair) for pair in pairs[:left]) + end)
    config = {"model_type": "roberta", "vocab_size": len(words)}
    write(tmp_path / "config.json", json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    if expected.endswith("within"):
        with pytest.raises(UserError, match=expected):
            check_vocab_size(tokenizer, str(tmp_path), load_config(tmp_path))
        return
    check_vocab_size(tokenizer, str(tmp_path), load_config(tmp_path))
    assert [expected in record.getMessage() for record in caplog.records] == [True] * bool(expected)
