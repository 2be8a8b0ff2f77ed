"""Train a fast text classifier from a table and a pre-trained encoder, with one command.

    python make_classifier.py --train_file reviews.csv --model_name_or_path bert-base-uncased \\
        --output_dir out/reviews

The command trains an exit (a small classifier) after every layer with the recommended recipe,
chooses an exit threshold on one half of the dev rows, reports accuracy and cost on the other half,
writes an int8 ONNX file, and prints how to use it. The model is in OUTPUT_DIR/model. Without
--validation_file, a share of the training rows is the dev set, with the same shares of labels.

With --recipe add_exits, MODEL_NAME_OR_PATH is a fine-tuned classifier, whose head becomes the last
exit; with --train_exits_only as well, its answers at full depth stay as they are.

After an interruption, give the same command again to continue. Flags that are not listed below go
to the training (run_glue.py --help lists them). Needs requirements-onnx.txt.
"""
# `main` has the steps in their order. Each is one of the scripts, whose command is printed.

import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError
from elbert_base.files import read_json
from elbert_base.keys import RECIPES
from glue.custom import TASK_TYPES, custom_task, task_type_of
from glue.metrics import with_scorer
from glue.splits import Split, read_examples, split_labels
from glue.tables import Row, as_csv
from glue.tasks import Task
from runs.console import markdown_table
from runs.files import check_place
from runs.flags import AT_LEAST_0, SEED, SHARE, FlagParser, is_on, parse
from runs.folder import RunFolder
from runs.output_dir import has_files, locked_for_training
from runs.processes import call, run_script
from runs.settings import GROUPS

# Under these exit settings every example runs all layers, as they were trained: no entropy is below
# 0, and a predicted value has none.
FULL_DEPTH = ("thres_name=entropy", "exit_thres=0", "exit_calibration=[]")
COLUMN_FLAGS = ("text_column_names", "label_column_name", "label_separator")
# Files in OUTPUT_DIR/data.
TRAIN_FILE = "train.csv"
DEV_FILE = "validation.csv"
SPLIT_ADVICE = "give more rows, or a --validation_file"
ONNX_PACKAGES = ("onnx_ir", "onnxscript", "onnxruntime")
# Encoders up to this hidden size take the higher learning rate.
SMALL_HIDDEN_SIZE = 512
SMALL_LEARNING_RATE = 1e-4
LARGE_LEARNING_RATE = 3e-5
EXITS_LEARNING_RATE = 2.5e-4  # on an encoder that stays as it is; exit_lr_factor multiplies it


@dataclass(frozen=True)
class Project:
    """What the user asked for.

    Attributes:
        table: the file with the training rows.
        dev_table: the file with the dev rows; None: a share of `table`.
        task: the texts and labels of `table`.
        encoder: folder or hub name of the model that the training starts from.
        output_dir: the folder of all results.
        column_flags: the user's flags for the columns, for run_glue.py.
        training_flags: the user's other flags for run_glue.py.
        validation_share: share of the dev rows in `table`.
        max_drop: the largest loss of the metric by early exit.
        seed: random seed.
        recipe: the configuration keys that the training starts from, by name.
        metric_flags: the user's flag for the metric, for all steps.
    """

    table: Path
    dev_table: Path | None
    task: Task
    encoder: str
    output_dir: Path
    column_flags: Sequence[str]
    training_flags: Sequence[str]
    validation_share: float
    max_drop: float
    seed: int
    recipe: str
    metric_flags: Sequence[str] = ()

    @property
    def overwrites(self) -> bool:
        """Tell whether a model that is there already gives way to a new training."""
        return is_on("overwrite_output_dir", self.training_flags)

    @property
    def data_dir(self) -> Path:
        """Folder of the rows that a split of the table makes."""
        return self.output_dir / "data"

    @property
    def train_file(self) -> Path:
        """The file with the rows to train on."""
        return self.data_dir / TRAIN_FILE if self.dev_table is None else self.table

    @property
    def dev_file(self) -> Path:
        """The file with the dev rows."""
        return self.dev_table or self.data_dir / DEV_FILE

    @property
    def model_dir(self) -> Path:
        """Folder of the trained model."""
        return self.output_dir / "model"

    @property
    def int8_file(self) -> Path:
        """The ONNX file, where `elbert.Classifier` finds it by its name."""
        return self.model_dir / "classifier-int8.onnx"


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


# Reading the command line.


def make_parser() -> FlagParser:
    """Make the parser of the command's own flags."""
    parser = FlagParser(__doc__)
    parser.add_argument(
        "--train_file", required=True, help="table of texts and labels: CSV, TSV or JSON lines"
    )
    parser.add_argument(
        "--validation_file", help="table of dev rows; default: a share of --train_file"
    )
    parser.add_argument(
        "--model_name_or_path", required=True, help="pre-trained encoder: folder or hub name"
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of all results")
    parser.add_argument(
        "--text_column_names",
        help="names of the text columns; default: sentence1[,sentence2]",
    )
    parser.add_argument(
        "--label_column_name",
        help="name of the label column; default: label; A,B,C: several labels, a column of 0 and 1 "
        "for each",
    )
    parser.add_argument(
        "--label_separator", help="separator of several labels in a cell of the label column"
    )
    parser.add_argument(
        "--task_type",
        choices=TASK_TYPES,
        help="meaning of the label column; default: regression if all labels are numbers and one "
        "is not whole, else classification",
    )
    parser.add_argument(
        "--drop_incomplete_rows",
        action="store_true",
        help="leave out rows without a text or a label",
    )
    parser.add_argument(
        "--validation_share",
        type=SHARE.reader(float),
        default=0.2,
        help="share of --train_file that becomes the dev rows",
    )
    parser.add_argument(
        "--max_drop",
        type=AT_LEAST_0.reader(float),
        default=0.01,
        help="largest loss of the metric through early exit, on the dev rows that choose",
    )
    parser.add_argument(
        "--metric_name",
        help="metric by which the threshold is chosen: one of scikit-learn's scorers, such as "
        "f1_macro, or your own as module.function; default: that of the task",
    )
    parser.add_argument("--seed", type=SEED.reader(int), default=42, help="random seed")
    parser.add_argument(
        "--recipe",
        choices=tuple(RECIPES),
        default="recommended",
        help="recipe, a set of configuration keys for the training; add_exits keeps the head of a "
        "fine-tuned classifier as the last exit",
    )
    return parser


def read_project() -> Project:
    """Read the command line and the table; raises UserError for what the steps could not do."""
    args, training_flags = make_parser().parse_known_args()
    task = custom_task(
        {"train": args.train_file, "dev": args.validation_file},
        text_columns=args.text_column_names,
        label_column=args.label_column_name,
        separator=args.label_separator,
        task_type=args.task_type,
        drop_incomplete=args.drop_incomplete_rows,
    )
    task = with_scorer(task, args.metric_name)
    if args.validation_file:
        read_examples(task, "", "dev")  # now: the training does not need these rows
    return Project(
        table=Path(args.train_file),
        dev_table=Path(args.validation_file) if args.validation_file else None,
        task=task,
        encoder=args.model_name_or_path,
        output_dir=args.output_dir,
        column_flags=column_flags(args, task),
        training_flags=training_flags,
        validation_share=args.validation_share,
        max_drop=args.max_drop,
        seed=args.seed,
        recipe=args.recipe,
        metric_flags=["--metric_name", args.metric_name] if args.metric_name else (),
    )


def column_flags(args: Namespace, task: Task) -> list[str]:
    """List the flags for the columns that the user has given, and the task of the whole table."""
    flags = ["--task_type", task_type_of(task)]
    if args.drop_incomplete_rows:
        flags.append("--drop_incomplete_rows")
    for name in COLUMN_FLAGS:
        value = getattr(args, name)
        if value:
            flags += [f"--{name}", value]
    return flags


def check_packages() -> None:
    """Raise UserError where the last step, the export, would lack a package."""
    for name in ONNX_PACKAGES:
        if not find_spec(name):
            raise UserError(f"No module {name}: pip install -r requirements-onnx.txt")


# The steps.


def split_table(project: Project) -> None:
    """Write the training and the dev rows of the table into OUTPUT_DIR/data.

    Raises UserError for a table that cannot be read, or a label with one row.
    """
    from sklearn.model_selection import train_test_split

    task = project.task
    columns = (*task.text_columns, *task.label_columns)
    rows = []
    for _, row in Split(task, data_dir="", name="train").rows(columns):
        rows.append({name: row[name] for name in columns})
    # Rows with equal texts stay together: what was trained on must not be measured.
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        row_texts = tuple(row[name].strip() for name in task.text_columns)
        groups.setdefault(row_texts, []).append(row)
    labels = None  # scores, and sets of labels, are not stratified
    if task.labels and not task.multi_label:
        labels = [group[0][task.label_column].strip() for group in groups.values()]
    check_can_be_split(project, labels, len(groups))
    try:
        train_groups, dev_groups = train_test_split(
            list(groups.values()),
            test_size=project.validation_share,
            random_state=project.seed,
            stratify=labels,
        )
    except ValueError as error:
        raise UserError(f"{project.table} cannot be split: {error}; {SPLIT_ADVICE}") from error
    train_rows = [row for group in train_groups for row in group]
    dev_rows = []
    known_labels = {label for row in train_rows for label in labels_of(task, row)}
    for group in dev_groups:
        group_labels = {label for row in group for label in labels_of(task, row)}
        # The labels of the whole table are those of the training.
        if group_labels <= known_labels:
            dev_rows += group
        else:
            train_rows += group
        known_labels |= group_labels
    if not dev_rows:
        raise UserError(
            f"{project.table} cannot be split: all dev rows have a label that no other row has; "
            f"{SPLIT_ADVICE}"
        )
    texts = {TRAIN_FILE: as_csv(train_rows), DEV_FILE: as_csv(dev_rows)}
    check_same_rows(project, texts)
    data = RunFolder(project.data_dir)
    for name, text in texts.items():
        data.write_text(name, text)


def labels_of(task: Task, row: Row) -> list[str]:
    """List the labels that a row's cell has; none where labels are scores, or columns."""
    if task.multi_label:
        return split_labels(task, row) if task.separator else []
    return [row[task.label_column].strip()] if task.labels else []


def check_can_be_split(project: Project, labels: Sequence[str] | None, text_count: int) -> None:
    """Raise UserError where there is one text only, or one of a label.

    Args:
        labels: of each different text, if each has one class.
        text_count: different texts in the table.
    """
    if text_count == 1:
        raise UserError(
            f"{project.table} cannot be split: all rows have the same text; {SPLIT_ADVICE}"
        )
    single = [label for label, count in Counter(labels or ()).items() if count == 1]
    if single:
        raise UserError(
            f"{project.table} cannot be split: only one text has the label {single[0]!r}; "
            f"{SPLIT_ADVICE}"
        )


def check_same_rows(project: Project, texts: Mapping[str, str]) -> None:
    """Raise UserError where the folder has a model of other rows: it may have seen these dev rows.

    texts: contents of the files in OUTPUT_DIR/data that are about to be written, by name.
    """
    if project.overwrites or not has_files(project.model_dir):
        return
    for name, text in texts.items():
        path = project.data_dir / name
        if path.is_file() and path.read_bytes() != text.encode("utf-8"):
            raise UserError(
                f"{project.model_dir} was trained on other rows: {project.table}, its columns, "
                "--seed or --validation_share have changed since. Choose another --output_dir, or "
                "add --overwrite_output_dir to train anew; nothing was changed"
            )


def check_inputs(project: Project) -> None:
    """Raise UserError for a table that this command would write over."""
    outputs = [project.data_dir / TRAIN_FILE, project.data_dir / DEV_FILE]
    for table in (project.table, project.dev_table):
        if table and table.resolve() in [path.resolve() for path in outputs]:
            raise UserError(
                f"{table} is one of the files that --output_dir {project.output_dir} makes of a "
                "table; choose another --output_dir, or give the table that it was made of"
            )


def training_command(project: Project) -> list[str]:
    """List the flags that train an exit after every layer, by the recipe.

    Raises UserError for an encoder that cannot be read; a wrong flag of the user's ends the process
    with status 2, as it would in run_glue.py.
    """
    from elbert import load_config

    is_small = load_config(project.encoder).hidden_size <= SMALL_HIDDEN_SIZE
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
    parse(GROUPS, None, words)
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


def export_int8(project: Project) -> None:
    """Write the int8 ONNX file."""
    flags = ["--model_dir", project.model_dir, "--output", project.int8_file, "--int8"]
    run("export_onnx.py", flags)


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


def print_usage(project: Project) -> None:
    """Print where the report is, and how to use the model and the ONNX file."""
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
        f"    print(classify([{example}]))\n\n"
        "On a CPU, the int8 ONNX file answers fastest:\n\n"
        "    import elbert\n"
        f"    classify = elbert.Classifier({str(model_dir)!r}, onnx={project.int8_file.name!r})\n"
        f"    print(classify([{example}]))\n\n"
        "The int8 ONNX file, without PyTorch (pip install onnxruntime tokenizers):\n\n"
        f"    python examples/onnx_python.py {project.int8_file} {model_dir}/tokenizer.json "
        f"{' '.join(texts)}"
    )


def main() -> None:
    project = read_project()
    check_place(project.model_dir)
    check_packages()  # now, since the export comes last, after the training
    check_inputs(project)
    training = training_command(project)  # its flags, before anything is written
    with locked_for_training(project.output_dir):
        make(project, training)


def make(project: Project, training: Sequence[str]) -> None:
    """Take all steps, and print what came of them; training: the flags of the first."""
    if project.dev_table is None:
        split_table(project)
    run("run_glue.py", training)
    choose_threshold(project)
    export_int8(project)
    full_depth = evaluate(
        project, "all layers, PyTorch", ["--skip_full_depth", "--set", *FULL_DEPTH]
    )
    # Without --skip_full_depth, the ONNX file's answers are compared with the model's.
    int8 = evaluate(project, "early exit, int8 ONNX file", ["--onnx", project.int8_file])
    # The last, as its eval_results.json and exits.png stay in the model's folder.
    early_exit = evaluate(project, "early exit, PyTorch")
    columns = ("", "all dev rows", "computation cost", "ms per example")
    measurements = (full_depth, early_exit, int8)
    cells = [measurement.cells() for measurement in measurements]
    print(f"\n{markdown_table(columns, cells)}\n")
    print("These are all dev rows, with those that chose the threshold.")
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
    for measurement in measurements:
        for remark in measurement.remarks:
            print(f"suspect: {measurement.name}: {remark}")
    print_usage(project)


if __name__ == "__main__":
    run_script(main)
