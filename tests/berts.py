"""Tiny BERTs and encoders of its kind, and what share_layers.py makes of them."""

import json
from collections.abc import Iterable
from pathlib import Path
from string import ascii_lowercase

import torch
import transformers
from transformers import BertModel, PreTrainedModel

from tests.conftest import TINY, WORDS, sentence

SIZES = {**{k: v for k, v in TINY.items() if k != "embedding_size"}, "num_hidden_layers": 3}


ROBERTA = {"max_position_embeddings": 42, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
MPNET = {"max_position_embeddings": 42, "type_vocab_size": 2, "layer_norm_eps": 1e-5}
# The prefix of HF's classes, and what a configuration has beside SIZES.
FAMILIES = {
    "albert": ("Albert", {"embedding_size": 16}),
    "bert": ("Bert", {}),
    "roberta": ("Roberta", ROBERTA),
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "camembert": ("Camembert", ROBERTA),
    "distilbert": ("DistilBert", {"hidden_dim": SIZES["intermediate_size"]}),
    "electra": ("Electra", {"embedding_size": 16}),
    "mpnet": ("MPNet", MPNET),
}


def tiny_encoder(family: str, head: str = "Model", **overrides) -> PreTrainedModel:
    """A random model of HF's in eval mode, biases too; texts have up to 40 tokens."""
    torch.manual_seed(5)
    name, shape = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **shape, **overrides})
    model = getattr(transformers, f"{name}{head}")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
    return model


def tiny_bert(equal: bool = False, **overrides) -> BertModel:
    """`equal`: all layers are copies of the first."""
    model = tiny_encoder("bert", **overrides)
    for layer in model.encoder.layer[1:] if equal else ():
        layer.load_state_dict(model.encoder.layer[0].state_dict())
    return model


def save(model: PreTrainedModel, folder: Path) -> Path:
    """The model with a WordPiece vocabulary of its sentences' words; a RoBERTa's has letters."""
    model.save_pretrained(folder)
    if model.config.model_type == "roberta":
        pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *ascii_lowercase]
        numbers = {piece: number for number, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(numbers))
        (folder / "merges.txt").write_text("#version: 0.2\n")
        return folder
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if model.config.model_type == "mpnet":
        special = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]
        tokenizer = {"tokenizer_class": "MPNetTokenizer"}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    pieces = [*special, *sorted(set(WORDS)), "##s", "##ed"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return folder


def plain_text(folder: Path) -> Path:
    """60 documents of 1 to 3 sentences."""
    path = folder / "text.txt"
    documents = [[sentence(i + j, 3 + (i + j) % 9) for j in range(i % 3 + 1)] for i in range(60)]
    path.write_text("\n\n".join("\n".join(lines) for lines in documents))
    return path


def assert_same_states(
    found: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor], inputs: dict[str, torch.Tensor]
) -> None:
    """States (batch, length, hidden) that agree on real tokens."""
    real = inputs["attention_mask"].bool()
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)


def sharing_flags(bert_dir: Path, text: Path, out: Path, *more) -> list:
    """Of share_layers.py: eight steps."""
    text_flags = (
        f"--model_name_or_path {bert_dir} --train_files {text} --eval_file {text} "
        f"--output_dir {out} --max_seq_length 16 --per_gpu_train_batch_size 4 --max_steps 8 "
        "--warmup_steps 2 --learning_rate 3e-3 --logging_steps 1 --seed 3 --do_train --no_cuda"
    )
    return [*text_flags.split(), *map(str, more)]
