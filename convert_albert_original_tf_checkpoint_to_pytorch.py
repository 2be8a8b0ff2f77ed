"""Turn a TensorFlow checkpoint of ALBERT or Adaptive Depth into a model of this suite and of HF.

    python convert_albert_original_tf_checkpoint_to_pytorch.py \\
        --tf_checkpoint_path albert_base/model.ckpt-best \\
        --albert_config_file albert_base/albert_config.json --pytorch_dump_path albert_base_pytorch

If the dump path is a directory, it gets config.json, model.safetensors and the vocabulary found
beside the checkpoint; if it ends in .bin, it gets only the state dict. Needs TensorFlow:
pip install -r requirements-tf.txt
"""

import io
import shutil
from functools import partial
from pathlib import Path

from runs.files import write_file
from runs.flags import FlagParser
from runs.processes import run_script

# A tokenizer's files, and their names beside Google's checkpoints.
VOCABULARIES = {
    "spiece.model": "spiece.model",
    "30k-clean.model": "spiece.model",
    "vocab_chinese.txt": "vocab.txt",
}


def vocabulary(prefix: Path) -> dict[str, Path]:
    """Find the tokenizer's files: beside a checkpoint, or in the assets of a TF-Hub export."""
    folders = (prefix.parent, prefix.parents[1] / "assets")
    paths = [(ours, folder / name) for folder in folders for name, ours in VOCABULARIES.items()]
    return {name: path for name, path in paths if path.is_file()}


def main() -> None:
    parser = FlagParser(__doc__)
    add = partial(parser.add_argument, required=True)
    add("--tf_checkpoint_path", help="what its files' names share (albert_base/model.ckpt-best)")
    add("--albert_config_file", help="its albert_config.json, or a config.json")
    add("--pytorch_dump_path", help="a directory, or a file that ends in .bin")
    args = parser.parse_args()
    # torch, and what stands on it: not before the flags are known to be right.
    import torch
    from transformers.utils import logging as hf_logging

    from elbert.loading.tensorflow import load_tf_checkpoint
    from training.model_folder import write_directory

    hf_logging.disable_progress_bar()
    target = Path(args.pytorch_dump_path)
    as_file = target.suffix == ".bin" and not target.is_dir()
    prefix = args.tf_checkpoint_path
    model, report = load_tf_checkpoint(prefix, args.albert_config_file)
    print("\n".join(report.lines()[:2]))
    if as_file:
        buffer = io.BytesIO()  # given a file, torch.save hides the reason of a failed write
        torch.save(model.state_dict(), buffer)
        write_file(target, lambda file: file.write(buffer.getbuffer()))
    else:
        files = vocabulary(Path(prefix).absolute())

        def fill(directory: Path) -> None:
            model.save_pretrained(directory)
            for name, path in files.items():
                shutil.copyfile(path, directory / name)

        write_directory(target, fill)
        print(f"Vocabulary: {', '.join(files) or 'none beside the checkpoint'}")
    print(f"{type(model).__name__} written to {target}")


if __name__ == "__main__":
    run_script(main)
