"""What users of ELBERT's published code and of the Adaptive-Depth notebook are used to type."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import run_glue
from modeling import load_pretrained
from tests.commands import report_of, train
from tests.conftest import edit_json

ROOT = Path(run_glue.__file__).parent


@pytest.fixture(scope="module")
def half_way(tmp_path_factory, albert_dir, rte) -> Path:
    """A finished training of three steps that left checkpoint-2 behind."""
    return train(albert_dir, rte, tmp_path_factory.mktemp("half") / "RTE", "--save_steps", 2)


def test_a_checkpoint_as_starting_weights_of_its_own_run_is_told_how_to_go_on(glue, half_way):
    """The published way to resume. Here it would overwrite the checkpoint that it starts from."""
    checkpoint = half_way / "checkpoint-2"
    done = glue(half_way, "--do_train", "--overwrite_output_dir", weights=checkpoint)
    done.refused("from its step 2", f"--resume_from_checkpoint {checkpoint}")
    assert checkpoint.exists()
    resumed = ("--do_train", "--overwrite_output_dir", "--save_steps", 2)
    glue(half_way, *resumed, "--resume_from_checkpoint", checkpoint, weights=checkpoint).done()


def test_the_published_code_can_read_the_weights(glue, albert_dir, tmp_path):
    """Its PyTorch wrote pickles, not zip files; the tokenizer is the SentencePiece model."""
    out = tmp_path / "RTE"
    glue(out, "--do_train", "--max_steps", 1, "--save_format", "pytorch").done()
    assert (out / "pytorch_model.bin").read_bytes()[:2] != b"PK"
    found = torch.load(out / "pytorch_model.bin", weights_only=True)
    torch.testing.assert_close(found, dict(load_pretrained(out)[0].state_dict()), rtol=0, atol=0)
    assert (out / "spiece.model").read_bytes() == (albert_dir / "spiece.model").read_bytes()


def test_without_a_spiece_model_the_published_format_is_refused(glue, half_way, tmp_path):
    more = ("--do_train", "--save_format", "pytorch")
    glue(tmp_path / "RTE", *more, weights=half_way).refused("no spiece.model", "--tokenizer_name")


def test_published_switches_that_do_nothing_are_named(glue, albert_dir, tmp_path, caplog):
    config = tmp_path / "config.json"
    config.write_bytes((albert_dir / "config.json").read_bytes())
    edit_json(config, kd_enable=True, use_label_smooth=False)
    flags = ("--do_train", "--max_steps", 1, "--config_name", config)
    glue(tmp_path / "RTE", *flags).done()
    assert f"{config}: kd_enable = true has no effect: no distillation here" in caplog.text
    assert "use_label_smooth" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "edited"),
    [
        ("albert", {"exit_thres": 0.4, "cnt_thres": 8}),
        ("ponder_albert", {"exit_criteria": "threshold", "exit_thres": 0.5}),
        ("albert_act", {}),
    ],
)
def test_glue_run_trains_edits_and_evaluates_every_mode(mode, edited, tmp_path):
    variables = {
        "PYTHON": sys.executable,
        "MODEL_TYPE": mode,
        "OUT_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "TRAIN_FLAGS": "--from_scratch --max_steps 3 --max_train_samples 40 --save_format pytorch",
    }
    command = ["bash", ROOT / "glue_run.sh", "1"]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    config = json.loads((tmp_path / "RTE/config.json").read_text())
    assert {key: config[key] for key in edited} == edited
    assert 0 < report_of(tmp_path / "RTE")["computation_cost"] <= 1
