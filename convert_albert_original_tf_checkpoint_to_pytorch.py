"""Turn a TensorFlow checkpoint of ALBERT or Adaptive Depth into a model of this suite and of HF.

    python convert_albert_original_tf_checkpoint_to_pytorch.py \
        --tf_checkpoint_path albert_base/model.ckpt-best \
        --albert_config_file albert_base/albert_config.json --pytorch_dump_path albert_base_pytorch

A directory as dump path gets config.json, model.safetensors and the vocabulary that lies beside
the checkpoint; a path that ends in .bin gets the state dict alone. Needs TensorFlow:
pip install -r requirements-tf.txt
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from glue.files import run_script, write_file
from modeling.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# A tokenizer's files, and the names that they have beside published checkpoints.
VOCABULARIES = {
    "spiece.model": ("spiece.model", "*30k-clean*.model"),
    "spiece.vocab": ("spiece.vocab", "*30k-clean*.vocab"),
    "vocab.txt": ("vocab.txt", "vocab_chinese.txt"),
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tf_checkpoint_path",
        required=True,
        help="what its files' names share (albert_base/model.ckpt-best), or a TF-Hub export",
    )
    parser.add_argument(
        "--albert_config_file", required=True, help="its albert_config.json, or a config.json"
    )
    parser.add_argument(
        "--pytorch_dump_path", required=True, help="a directory, or a file that ends in .bin"
    )
    return parser.parse_args()


def vocabulary(prefix: str) -> dict[str, Path]:
    """The tokenizer's files of a checkpoint: beside it, or in the assets of a TF-Hub export."""
    folder = Path(prefix).parent
    found = {}
    for name, patterns in VOCABULARIES.items():
        candidates = [
            path
            for place in (folder, folder.parent / "assets")
            for pattern in patterns
            for path in sorted(place.glob(pattern))
        ]
        if candidates:
            found[name] = candidates[0]
    return found


def write_model(directory: Path, model: PreTrainedModel, files: dict[str, Path]) -> None:
    """Write the model and its tokenizer's files whole; raises UserError where that fails."""
    from training.checkpoints import write_directory

    def fill(temporary: Path) -> None:
        model.save_pretrained(temporary)
        for name, path in files.items():
            shutil.copyfile(path, temporary / name)

    write_directory(directory, fill)


def write_state_dict(path: Path, model: PreTrainedModel) -> None:
    """Write the .bin file whole; raises UserError where that fails."""
    import torch

    buffer = io.BytesIO()  # given a file, torch.save hides the reason of a failed write
    torch.save(model.state_dict(), buffer)
    write_file(path, lambda file: file.write(buffer.getbuffer()))


def main() -> None:
    args = parse_args()
    # torch, and what stands on it: not before the flags are known to be right.
    from transformers.utils import logging as hf_logging

    from modeling.loading.tensorflow import load_tf_checkpoint

    hf_logging.disable_progress_bar()
    target = Path(args.pytorch_dump_path)
    as_file = target.suffix == ".bin" and not target.is_dir()
    if target.is_file() and not as_file:
        raise UserError(
            f"--pytorch_dump_path {target} is a file; give a directory, or a file that ends in .bin"
        )
    model, report = load_tf_checkpoint(args.tf_checkpoint_path, args.albert_config_file)
    print("\n".join(report.lines()))
    if as_file:
        write_state_dict(target, model)
    else:
        files = vocabulary(report.prefix)
        write_model(target, model, files)
        print(f"Vocabulary: {', '.join(files) or 'none beside the checkpoint'}")
    print(f"{type(model).__name__} written to {target}")


if __name__ == "__main__":
    run_script(main)
