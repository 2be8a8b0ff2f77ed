"""The steps from a table to a classifier. Each is one of the scripts, whose command is printed."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modeling.errors import UserError
from modeling.files import read_json
from runs.console import markdown_table
from runs.flags import is_on, parse
from runs.processes import call
from runs.settings import GROUPS, GlueSettings
from training.classifier.project import Project
from training.classifier.split import split_table

# Under these exit settings every example runs all layers, as they were trained: no entropy is below
# 0, and a predicted value has none.
FULL_DEPTH = ("thres_name=entropy", "exit_thres=0", "exit_calibration=[]")
# Encoders up to this hidden size take the higher learning rate.
SMALL_HIDDEN_SIZE = 512
SMALL_LEARNING_RATE = 1e-4
LARGE_LEARNING_RATE = 3e-5
EXITS_LEARNING_RATE = 2.5e-4  # on an encoder that stays as it is; exit_lr_factor multiplies it


@dataclass(frozen=True)
class Measurement:
    """What an evaluation of the dev rows measured: a row of the table at the end.

    Attributes:
        name: what was evaluated.
        metric_name: name of the main metric.
        value: of this metric.
        computation_cost: mean share of layers that ran.
        median_ms: milliseconds per example.
        same_exit_layer: share of the examples that exit where they do in float32, if compared.
        same_answer: share of the examples that get float32's answer, if compared.
        remarks: what is suspect about the answers.
    """

    name: str
    metric_name: str
    value: float
    computation_cost: float
    median_ms: float
    same_exit_layer: float | None
    same_answer: float | None
    remarks: Sequence[str]

    @classmethod
    def from_results(cls, name: str, results: dict[str, Any], metric: str) -> "Measurement":
        """Read the content of an eval_results.json; metric: the main one's name."""
        return cls(
            name=name,
            metric_name=metric,
            value=results["metrics"][metric],
            computation_cost=results["computation_cost"],
            median_ms=results["latency_ms"]["median"],
            same_exit_layer=results.get("same_exit_layer_as_fp32"),
            same_answer=results.get("same_answer_as_fp32"),
            remarks=results["remarks"],
        )

    def cells(self) -> list[str]:
        """Format the cells of the row."""
        metric = f"{self.metric_name} {self.value:.4f}"
        return [self.name, metric, f"{self.computation_cost:.2f}", f"{self.median_ms:.1f}"]


def make_classifier(project: Project, training: Sequence[str]) -> None:
    """Take all steps, and print what came of them; training: the flags of the first."""
    if project.dev_table is None:
        split_table(project)
    run("run_glue.py", training)
    choose_threshold(project)
    has_file = export_int8(project)
    full_depth = evaluate(
        project, "all layers, PyTorch", ["--skip_full_depth", "--set", *FULL_DEPTH]
    )
    int8 = None
    if has_file:  # without --skip_full_depth, its answers are compared with the model's
        int8 = evaluate(project, "early exit, int8 ONNX file", ["--onnx", project.int8_file])
    # The last, as its eval_results.json and exits.png stay in the model's folder.
    early_exit = evaluate(project, "early exit, PyTorch")
    print_measurements(project, full_depth, early_exit, int8)
    print_usage(project, has_file)


def print_measurements(
    project: Project, full_depth: Measurement, early_exit: Measurement, int8: Measurement | None
) -> None:
    """Print the measurements as a table, what int8 changes, and what is suspect.

    int8: of the ONNX file, or None where there is none.
    """
    columns = ("", "all dev rows", "computation cost", "ms per example")
    measurements = [full_depth, early_exit]
    if int8 is not None:
        measurements.append(int8)
    cells = [measurement.cells() for measurement in measurements]
    print(f"\n{markdown_table(columns, cells)}\n")
    print("These are all dev rows, with those that chose the threshold.")
    if int8 is not None:
        print_int8(project, full_depth, int8)
    for measurement in measurements:
        for remark in measurement.remarks:
            print(f"suspect: {measurement.name}: {remark}")


def print_int8(project: Project, full_depth: Measurement, int8: Measurement) -> None:
    """Print what the int8 ONNX file changes."""
    loss = full_depth.value - int8.value
    if loss > project.max_drop:
        print(
            f"The int8 ONNX file loses {loss:.4f} of {int8.metric_name} here, of early exit and "
            f"int8 together; you asked for at most {project.max_drop:g} through early exit. If "
            "this is too much, use the model in PyTorch, or export_onnx.py without --int8."
        )
    if int8.same_exit_layer is not None:
        print(
            f"With the int8 ONNX file, {int8.same_exit_layer:.1%} of the dev rows exit at the same "
            "layer as in float32.\n"
        )
    if int8.same_answer is not None:
        print(
            f"With the int8 ONNX file, {int8.same_answer:.1%} of the dev rows get the same answer "
            "as in float32.\n"
        )


def training_command(project: Project) -> list[str]:
    """List the flags that train an exit after every layer, by the recipe.

    Raises UserError for an encoder that cannot be read, or keys that it cannot have; a wrong flag
    of the user's ends the process with status 2, as it would in run_glue.py.
    """
    from modeling import load_config

    config = load_config(project.encoder)
    is_small = config.hidden_size <= SMALL_HIDDEN_SIZE
    learning_rate = SMALL_LEARNING_RATE if is_small else LARGE_LEARNING_RATE
    if is_on("train_exits_only", project.training_flags):
        learning_rate = EXITS_LEARNING_RATE
    flags: list[object] = ["--model_type", "elbert", "--recipe", project.recipe, "--do_train"]
    flags += ["--model_name_or_path", project.encoder, "--seed", project.seed]
    flags += ["--train_file", project.train_file, "--validation_file", project.dev_file]
    flags += [*project.column_flags, *project.metric_flags]
    flags += ["--output_dir", project.model_dir, "--learning_rate", f"{learning_rate:g}"]
    flags += ["--per_gpu_train_batch_size", 32, "--warmup_ratio", 0.1]
    flags += ["--save_steps", 500]
    if not project.overwrites:
        flags += ["--resume_from_checkpoint", "latest"]
    flags += project.training_flags  # the last, so that they win
    words = [str(flag) for flag in flags]
    settings = GlueSettings(*parse(GROUPS, None, words))
    source = settings.model.config_name or project.encoder
    load_config(source, **settings.mode.keys.values)  # refuses what the encoder cannot have
    return words


def choose_threshold(project: Project) -> None:
    """Choose the exit threshold on half of the dev rows, and report the other half."""
    flags = ["--model_dir", project.model_dir, "--batch_size", 32]
    flags += ["--validation_file", project.dev_file, "--seed", project.seed]
    if project.recipe != "add_exits":
        flags += ["--rules", "optimal_stopping"]
    elif project.task.labels:  # a head that is kept is not recalibrated
        flags += ["--rules", "entropy"]
    flags += ["--pick", f"max_drop={project.max_drop:g}", *project.metric_flags]
    run("sweep_exits.py", flags)


def export_int8(project: Project) -> bool:
    """Write the int8 ONNX file; returns whether there is one.

    Not all encoders with transformers' own layers can be exported. export_onnx.py says why.
    """
    from modeling import load_config

    flags = ["--model_dir", project.model_dir, "--output", project.int8_file, "--int8"]
    try:
        run("export_onnx.py", flags)
    except UserError:
        if not load_config(project.model_dir).encoder_config:
            raise
        print("There is no ONNX file, for the reason above: the model answers in PyTorch.")
        return False
    return True


def evaluate(project: Project, name: str, extra_flags: Sequence[object] = ()) -> Measurement:
    """Evaluate the dev rows, one example at a time.

    Args:
        name: what is evaluated, for the table.
        extra_flags: what run_glue.py evaluates in place of the model and its own exit settings.
    """
    flags = ["--output_dir", project.model_dir, "--do_eval", "--per_gpu_eval_batch_size", 1]
    flags += ["--validation_file", project.dev_file]
    flags += ["--out_mode", "one", *project.metric_flags, *extra_flags]
    run("run_glue.py", flags)
    results = read_json(project.model_dir / "eval_results.json")
    return Measurement.from_results(name, results, project.task.primary_metric)


def run(script: str, flags: Sequence[object]) -> None:
    """Print a script's command and run it; raises UserError where it ends in an error."""
    words = [str(flag) for flag in flags]
    print(f"\n$ python {shlex.join([script, *words])}", flush=True)
    call(script, words)


def print_usage(project: Project, has_file: bool) -> None:
    """Print where the report is, and how to use the model and, if there is one, the ONNX file."""
    model_dir = project.model_dir
    # Stand-ins for the user's own texts.
    texts = ['"A text of yours"', '"Another one"'][: len(project.task.text_columns)]
    example = texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    print(
        f"Report: {model_dir}/sweep/explorer.html has a slider for the threshold, and every wrong "
        "answer.\n"
        "The results on the held-out half of the dev rows are above, after `Picked`.\n\n"
        "In Python (pip install .):\n\n"
        "    import elbert\n"
        f"    classify = elbert.Classifier({str(model_dir)!r})\n"
        f"    print(classify([{example}]))\n"
    )
    if not has_file:
        return
    print(
        "On a CPU, the int8 ONNX file answers fastest:\n\n"
        "    import elbert\n"
        f"    classify = elbert.Classifier({str(model_dir)!r}, onnx={project.int8_file.name!r})\n"
        f"    print(classify([{example}]))\n\n"
        "The int8 ONNX file, without PyTorch (pip install onnxruntime tokenizers):\n\n"
        f"    python examples/onnx_python.py {project.int8_file} {model_dir}/tokenizer.json "
        f"{' '.join(texts)}"
    )
