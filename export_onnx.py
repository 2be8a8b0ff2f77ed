"""Write a trained model and its exit rule as one ONNX file, which exits early by itself.

    python ./export_onnx.py --model_dir out/albert_base/RTE --output elbert.onnx

Inputs: input_ids, attention_mask, token_type_ids (batch, length) int64; for a ponder model that
samples, draws (batch,). The rule's numbers (exit_thres, cnt_thres, margin, range_tmp; act_epsilon)
are optional inputs: their defaults are the model's own values. Outputs: logits (batch,
labels), exit_layer (batch,), layers_run (); for albert_act updates (batch, length), not exit_layer.
--layer_logits adds layer_logits (layers, batch, labels), 0 for layers that were not run.

Needs requirements-onnx.txt. See docs/deployment.md.
"""

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

from elbert_base.errors import UserError
from elbert_base.exit_settings import resolve
from runs.console import StdoutHandler
from runs.files import write_file
from runs.flags import as_dict, option, parse
from runs.processes import run_script
from runs.provenance import provenance


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """The model and the file."""

    model_dir: Path = option(..., "folder of the trained model")
    output: Path = option(..., "file to write")
    int8: bool = option(False, "8-bit products, calibrated on training texts: smaller and faster")
    calibration_file: Path | None = option(
        None, "texts to calibrate --int8 on instead, with columns sentence1[,sentence2]"
    )
    layer_logits: bool = option(False, "add an output with every layer's answer")
    no_defaults: bool = option(
        False,
        "make the exit settings required inputs, for runtimes in JavaScript, which set "
        "no optional ones",
    )


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
    folder, output = settings.model_dir, settings.output
    if output.exists() and output.suffix != ".onnx":
        raise UserError(f"--output {output} exists, and is no .onnx file: choose another")
    # torch, and what stands on it: not before the flags are known to be right.
    try:
        import onnx_ir

        from elbert.export.graph import to_onnx
        from elbert.export.quantise import to_int8
    except ImportError as error:
        raise UserError(f"{error}; pip install -r requirements-onnx.txt") from error
    from elbert.onnx_file import describe_model
    from evaluation.calibration import calibration_feeds, find_texts
    from modes import trained_mode
    from runs.job import load_finished
    from runs.used_files import UsedFiles

    quiet_exporters()
    mode = trained_mode(folder)
    rule = resolve(folder, mode.table)
    texts = find_texts(folder, settings.calibration_file) if settings.int8 else None
    used = UsedFiles(folder, texts.path) if texts else UsedFiles(folder)
    model = load_finished(folder, rule)
    # Before the export, which takes longer: the texts may not be readable.
    feeds = list(calibration_feeds(folder, model, texts)) if texts else []

    facts = {
        **provenance(as_dict(settings), weights=used.weights).for_others(),
        **describe_model(model),
        "rule_sources": rule.sources,
    }
    metadata = {name: json.dumps(value) for name, value in facts.items()}
    loop = mode.export_loop(model, settings.layer_logits)
    exported = to_onnx(loop, metadata, has_defaults=not settings.no_defaults)
    if settings.int8:
        exported = to_int8(exported, model.config.hidden_size, feeds)
    content = onnx_ir.to_proto(exported).SerializeToString()

    used.check()
    write_file(output, lambda file: file.write(content))
    print(f"{output}: {len(content) / 1e6:.1f} MB, opset {exported.opset_imports['']}")
    print(f"rule: {rule.line()}")


if __name__ == "__main__":
    run_script(main)
