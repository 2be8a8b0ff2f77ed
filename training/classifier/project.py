"""What the user asked make_classifier.py for: its flags, and the folder of all results.

Loads no torch.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from glue.custom import TASK_TYPES, custom_task, task_type_of
from glue.metrics import with_scorer
from glue.splits import read_examples
from glue.tasks import Task
from modeling.errors import UserError
from modeling.keys import RECIPES
from runs.flags import AT_LEAST_0, SEED, SHARE, FlagParser, is_on

COLUMN_FLAGS = ("text_column_names", "label_column_name", "label_separator")
# Files in OUTPUT_DIR/data.
TRAIN_FILE = "train.csv"
DEV_FILE = "validation.csv"
ONNX_PACKAGES = ("onnx_ir", "onnxscript", "onnxruntime")


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


def make_parser(description: str | None) -> FlagParser:
    """Make the parser of the command's own flags; description: of its --help."""
    parser = FlagParser(description)
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
        help="names of the text columns; default: sentence1[,sentence2], or text",
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
    parser.add_argument(
        "--positive_label",
        help="of two classes, the one that --metric_name f1, precision, recall or jaccard is of",
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


def read_project(description: str | None) -> Project:
    """Read the command line and the table; raises UserError for what the steps could not do.

    description: of the command, for its --help.
    """
    args, training_flags = make_parser(description).parse_known_args()
    task = custom_task(
        {"train": args.train_file, "dev": args.validation_file},
        text_columns=args.text_column_names,
        label_column=args.label_column_name,
        separator=args.label_separator,
        task_type=args.task_type,
        drop_incomplete=args.drop_incomplete_rows,
    )
    task = with_scorer(task, args.metric_name, args.positive_label)
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
        metric_flags=metric_flags(args),
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


def metric_flags(args: Namespace) -> list[str]:
    """List the flags for the metric that the user has given."""
    flags = []
    for name in ("metric_name", "positive_label"):
        value = getattr(args, name)
        if value:
            flags += [f"--{name}", value]
    return flags


def check_packages() -> None:
    """Raise UserError where the last step, the export, would lack a package."""
    for name in ONNX_PACKAGES:
        if not find_spec(name):
            raise UserError(f"No module {name}: pip install -r requirements/onnx.txt")


def check_inputs(project: Project) -> None:
    """Raise UserError for a table that this command would write over."""
    outputs = [project.data_dir / TRAIN_FILE, project.data_dir / DEV_FILE]
    for table in (project.table, project.dev_table):
        if table and table.resolve() in [path.resolve() for path in outputs]:
            raise UserError(
                f"{table} is one of the files that --output_dir {project.output_dir} makes of a "
                "table; choose another --output_dir, or give the table that it was made of"
            )
