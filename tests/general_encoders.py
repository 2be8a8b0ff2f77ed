"""Small random classifiers of transformers whose layers are not the suite's own."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import elbert
from modeling.keys import RECIPES
from tests.conftest import WORDS

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(WORDS))]
SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,  # wide, so that layers and examples differ
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}
# The prefix of transformers' classes, and what a configuration has beside SIZES.
ENCODERS = {
    "modernbert": (
        "ModernBert",
        # Each token sees two neighbours on either side; every other layer sees all.
        {
            "local_attention": 4,
            "global_attn_every_n_layers": 2,
            "classifier_pooling": "mean",
            "initializer_cutoff_factor": 3.0,
        },
    ),
    "deberta-v2": (
        "DebertaV2",
        # As DeBERTa-v3's, with v2-xlarge's convolution.
        {
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "position_biased_input": False,
            "type_vocab_size": 0,
            "pooler_hidden_size": 32,
        },
    ),
    "nomic_bert": ("NomicBert", {}),
}


def tiny_classifier(model_type: str, **overrides) -> PreTrainedModel:
    """A random classifier in eval mode, biases too; texts have up to 40 tokens."""
    torch.manual_seed(5)
    name, shape = ENCODERS[model_type]
    config_class = getattr(transformers, f"{name}Config")
    known = {key: value for key, value in SIZES.items() if hasattr(config_class(), key)}
    config = config_class(**{**known, "num_labels": 3, **shape, **overrides})
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
    return model


def with_exits(model_type: str, **overrides) -> PreTrainedModel:
    """The classifier with exits, which differ, before its head; in eval mode."""
    with TemporaryDirectory() as folder:
        tiny_classifier(model_type, **overrides).save_pretrained(folder)
        torch.manual_seed(3)
        model, _ = elbert.load_pretrained(folder, **RECIPES["add_exits"]["elbert"])
    with torch.no_grad():
        for head in model.albert.encoder.exit_out_layers:
            head.classifier.weight.normal_(0, 1)
    return model.eval()


def save_with_tokenizer(model: PreTrainedModel, folder: Path) -> Path:
    """The model with a tokenizer.json of its sentences' words."""
    model.save_pretrained(folder)
    numbers = {word: number for number, word in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=model.config.max_position_embeddings,
    ).save_pretrained(folder)
    return folder
