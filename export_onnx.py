"""Write a trained model and its exit rule to an ONNX file, which exits early and needs no PyTorch.

    python ./export_onnx.py --model_dir out/albert_base/RTE --output elbert.onnx

--triton models/NAME writes a model for Triton Inference Server instead of a single file.

Inputs: input_ids, attention_mask, token_type_ids (batch, length) int64; for a ponder model that
samples, draws (batch,). The numbers of the exit rule (exit_thres, cnt_thres, margin, range_tmp;
act_epsilon) are optional inputs, whose defaults are the values of the model. Outputs: logits
(batch, labels), exit_layer (batch,), layers_run (); for albert_act, updates (batch, length) in
place of exit_layer. --layer_logits adds layer_logits (layers, batch, labels), 0 for layers that
were not run.

Needs requirements/onnx.txt. See docs/onnx.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

import json
import logging
import warnings
from dataclasses import dataclass

from modeling.errors import UserError
from modeling.exit_settings import resolve, warn_of_exit_file
from runs.console import StdoutHandler
from runs.files import check_place
from runs.flags import as_dict, option, parse
from runs.folder import RunFolder
from runs.processes import run_script
from runs.provenance import provenance

# In a model's folder of Triton's.
CONFIG_FILE = "config.pbtxt"
LABEL_FILE = "labels.txt"


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """The model and the ONNX file."""

    model_dir: Path = option(..., "folder of the trained model")
    output: Path | None = option(None, "ONNX file to write")
    triton: Path | None = option(
        None,
        "model folder to write in a repository of Triton Inference Server, e.g. models/reviews, in "
        "place of --output",
    )
    int8: bool = option(
        False,
        "compute matrix products with 8-bit integers, calibrated on texts of the training: a "
        "smaller and faster file",
    )
    calibration_file: Path | None = option(
        None, "table of other texts for --int8, with the columns of the training table"
    )
    layer_logits: bool = option(False, "add an output with the logits of every layer")
    no_defaults: bool = option(
        False,
        "make the numbers of the exit rule required inputs, for runtimes in JavaScript, which "
        "cannot set optional ones",
    )

    def check(self) -> None:
        """Raise UserError unless the flags name one place, which may be written."""
        if (self.output is None) == (self.triton is None):
            raise UserError("give --output, the file to write, or --triton, a model's folder")
        if self.output and self.output.exists() and self.output.suffix != ".onnx":
            raise UserError(f"--output {self.output} exists, and is no .onnx file: choose another")
        if self.calibration_file and not self.int8:
            raise UserError("--calibration_file is for --int8: give it, or leave the file out")
        if self.triton and (self.no_defaults or self.layer_logits):
            raise UserError(
                "--triton: the numbers of the exit rule are constants there, and every output has "
                "a row for each example: leave out --no_defaults and --layer_logits"
            )
        if self.triton and self.triton.exists() and not (self.triton / CONFIG_FILE).is_file():
            raise UserError(f"--triton {self.triton} exists, without {CONFIG_FILE}: choose another")

    @property
    def file(self) -> Path:
        """The file to write."""
        return self.output or Path(str(self.triton), "1", "model.onnx")


def quiet_exporters() -> None:
    """Log the project's messages to stdout, and only errors of the exporters."""
    logging.basicConfig(format="%(levelname)s - %(message)s", handlers=[StdoutHandler()])
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # onnxruntime's Python tools log through the root logger itself.
    logging.getLogger().addFilter(lambda record: record.levelno >= logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)


def main() -> None:
    (settings,) = parse([ExportSettings], __doc__)
    folder, output = settings.model_dir, settings.file
    check_place(output)
    # torch, and what stands on it: not before the flags are known to be right.
    try:
        import onnx_ir

        from modeling.export.check import check_answers
        from modeling.export.graph import to_onnx
        from modeling.export.quantise import to_int8
        from modeling.export.triton import fix_settings, model_config
    except ImportError as error:
        raise UserError(f"{error}; pip install -r requirements/onnx.txt") from error
    from elbert.onnx_file import describe_model
    from evaluation.calibration import calibration_feeds, deepest_settings, find_texts
    from evaluation.modes import trained_mode
    from runs.job import load_finished
    from runs.used_files import UsedFiles

    quiet_exporters()
    mode = trained_mode(folder)
    rule = resolve(folder, mode.table)
    texts = find_texts(folder, settings.calibration_file) if settings.int8 else None
    used = UsedFiles(folder, texts.path) if texts else UsedFiles(folder)
    warn_of_exit_file(folder, lambda: used.model_hashes["weights"])
    model = load_finished(folder, rule)
    # Before the export, which takes longer: the texts may not be readable.
    feeds = list(calibration_feeds(folder, model, texts)) if texts else []

    facts = {
        **provenance(as_dict(settings), used.model_hashes).for_others(),
        **describe_model(model),
        "rule_sources": {key: Path(source).name for key, source in rule.sources.items()},
    }
    metadata = {name: json.dumps(value) for name, value in facts.items()}
    loop = mode.export_loop(model, settings.layer_logits)
    exported = to_onnx(loop, metadata, has_defaults=not settings.no_defaults)
    if getattr(model.config, "encoder_config", None):
        check_answers(exported, model, deepest_settings(model.config))
    if settings.int8:
        exported = to_int8(exported, model.config.hidden_size, feeds)
    if settings.triton:
        fix_settings(exported, list(loop.settings()))
    content = onnx_ir.to_proto(exported).SerializeToString()

    used.check()
    # A file of the user's own that is in the way is put aside.
    place = RunFolder(settings.triton or folder)
    place.write(output, lambda file: file.write(content))
    if settings.triton:
        config = model_config(settings.triton.name, exported, LABEL_FILE)
        place.write_text(LABEL_FILE, "".join(f"{x}\n" for x in facts["labels"]))
        place.write_text(CONFIG_FILE, config)
    print(f"{output}: {len(content) / 1e6:.1f} MB, opset {exported.opset_imports['']}")
    idle_keys = model.config.idle_keys(rule.values)
    print(f"rule: {rule.without(*idle_keys).line()}")


if __name__ == "__main__":
    run_script(main)
