"""What every mode does, and what it refuses."""

import pytest
import transformers

from evaluation.modes import trained_mode
from tests.commands import report_of
from tests.conftest import TINY, edit_json


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("mode", ["ponder_albert", "albert_act"])
def test_half_precision_checkpointing_and_accumulation(mode, glue, tmp_path):
    kind = ("--model_type", mode)
    cheap = ("--bf16", "--gradient_checkpointing", "--gradient_accumulation_steps", 2)
    glue(tmp_path, *kind, "--do_train", *cheap).done()
    glue(tmp_path, *kind, "--do_eval", "--dtype", "bf16", "--compile", "off").done()
    assert report_of(tmp_path)["dtype"] == "bf16"


def test_the_model_type_must_be_that_of_the_trained_model(ponder, glue):
    outcome = glue(ponder, "--model_type", "albert", "--do_eval")
    outcome.refused("--model_type albert", ponder, "--model_type ponder_albert")
    assert trained_mode(ponder).name == "ponder_albert"
    edit_json(ponder / "config.json", model_type="albert")
    assert trained_mode(ponder).name == "albert"


def test_layers_that_are_not_shared_are_refused_with_the_remedy(glue, tmp_path):
    sizes = {k: v for k, v in TINY.items() if k != "embedding_size"}
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(tmp_path / "bert")
    albert = transformers.AlbertConfig(**TINY, num_hidden_groups=2)
    transformers.AlbertModel(albert).save_pretrained(tmp_path / "groups")
    for name, words in (
        ("bert", ["model_type = 'bert'", "one layer at every depth", "share_layers.py makes"]),
        ("groups", ["num_hidden_groups = 2", "one layer at every depth"]),
    ):
        kind = ("--model_type", "ponder_albert")
        glue(tmp_path / "out", *kind, "--do_train", weights=tmp_path / name).refused(*words)


@pytest.mark.parametrize(
    ("mode", "more", "words"),
    [
        ("albert", ["--lambda_lr", "0.1"], ["--lambda_lr", "no key of --model_type albert"]),
        ("ponder_albert", ["--set", "cnt_thres=2"], ["cnt_thres", "no key of"]),
        ("ponder_albert", ["--target_halt_probability", "2"], ["target_halt_probability = 2"]),
        ("ponder_albert", ["--kl_penalty_factor", "-1"], ["kl_penalty_factor = -1", "at least 0"]),
        ("ponder_albert", ["--exit_criteria", "mean"], ["'mean'", "sample, threshold"]),
        ("ponder_albert", ["--max_seq_length", "3"], ["--max_seq_length 3", "4 to"]),
    ],
)
def test_a_bad_key_of_a_mode_is_named(glue, tmp_path, mode, more, words):
    glue(tmp_path / "out", "--model_type", mode, "--do_train", *more).refused(*words)
