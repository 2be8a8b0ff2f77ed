"""Turn a TensorFlow checkpoint of ALBERT or Adaptive Depth into a model of this suite and of HF.

    python convert_albert_original_tf_checkpoint_to_pytorch.py \\
        --tf_checkpoint_path albert_base/model.ckpt-best \\
        --albert_config_file albert_base/albert_config.json --pytorch_dump_path albert_base_pytorch

If the dump path is a directory, it gets config.json, model.safetensors, the vocabulary found beside
the checkpoint and the tokenizer.json made from it, with --save_format pytorch also
pytorch_model.bin; if it ends in .bin, it gets only the state dict. Needs TensorFlow:
pip install -r requirements/tf.txt
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

import io
import shutil
from collections.abc import Mapping
from typing import Any

from runs.files import check_place, write_file
from runs.flags import FlagParser
from runs.processes import run_script

# A tokenizer's files: by the names that they have beside Google's checkpoints, the names here.
VOCABULARIES = {
    "spiece.model": "spiece.model",
    "30k-clean.model": "spiece.model",
    "spiece.vocab": "spiece.vocab",
    "30k-clean.vocab": "spiece.vocab",
    "vocab_chinese.txt": "vocab.txt",
}


def vocabulary(prefix: Path) -> dict[str, Path]:
    """Find the tokenizer's files, by the names that they have here.

    They are beside a checkpoint, or in the assets of a TF-Hub export; the latter count.

    prefix: what the names of the checkpoint's files share.
    """
    paths = {}
    for folder in (prefix.parent, prefix.parents[1] / "assets"):
        for google_name, name in VOCABULARIES.items():
            path = folder / google_name
            if path.is_file():
                paths[name] = path
    return paths


def write_state_dict(model: Any, target: Path) -> None:
    """Write a model's tensors alone, as PyTorch of 2020 saved them."""
    import torch

    buffer = io.BytesIO()  # given a file, torch.save hides the reason of a failed write
    torch.save(model.state_dict(), buffer, _use_new_zipfile_serialization=False)
    write_file(target, lambda file: file.write(buffer.getbuffer()))


def write_model(
    model: Any, vocabulary_files: Mapping[str, Path], target: Path, with_bin: bool
) -> None:
    """Write a model's folder, with its tokenizer's files and a tokenizer.json made from them.

    with_bin: whether to write the weights into pytorch_model.bin as well.
    """
    from modeling.loading.tokenizers import TOKENIZER_FILES, load_tokenizer
    from training.model_folder import write_directory

    def fill(directory: Path) -> None:
        model.save_pretrained(directory)
        for name, path in vocabulary_files.items():
            shutil.copyfile(path, directory / name)
        if vocabulary_files.keys() & set(TOKENIZER_FILES):
            tokenizer = load_tokenizer(directory)
            tokenizer.model_max_length = model.config.max_position_embeddings
            tokenizer.save_pretrained(str(directory))
        if with_bin:
            write_state_dict(model, directory / "pytorch_model.bin")

    write_directory(target, fill)


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument(
        "--tf_checkpoint_path",
        required=True,
        help="what its files' names share (albert_base/model.ckpt-best)",
    )
    parser.add_argument(
        "--albert_config_file", required=True, help="its albert_config.json, or a config.json"
    )
    parser.add_argument(
        "--pytorch_dump_path",
        "--model_dir",
        required=True,
        help="a directory, or a file that ends in .bin",
    )
    parser.add_argument(
        "--save_format",
        default="safetensors",
        choices=("safetensors", "pytorch"),
        help="format of a directory's weights; pytorch: pytorch_model.bin as well, which ELBERT's "
        "published code reads",
    )
    args = parser.parse_args()
    target = Path(args.pytorch_dump_path)
    writes_file = target.suffix == ".bin" and not target.is_dir()
    check_place(target if writes_file else target / "config.json")
    # torch, and what stands on it: not before the flags are known to be right.
    from transformers.utils import logging as hf_logging

    from modeling.loading.tensorflow import load_tf_checkpoint

    hf_logging.disable_progress_bar()
    model, report = load_tf_checkpoint(args.tf_checkpoint_path, args.albert_config_file)
    loaded, ignored, _ = report.lines()
    print(f"{loaded}\n{ignored}")
    if writes_file:
        write_state_dict(model, target)
    else:
        vocabulary_files = vocabulary(Path(args.tf_checkpoint_path).absolute())
        write_model(model, vocabulary_files, target, with_bin=args.save_format == "pytorch")
        print(f"Vocabulary: {', '.join(vocabulary_files) or 'none beside the checkpoint'}")
    print(f"{type(model).__name__} written to {target}")


if __name__ == "__main__":
    run_script(main)
