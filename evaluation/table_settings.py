"""The flags of classify.py. Loads no torch."""

from dataclasses import dataclass

from modeling.errors import UserError
from runs.flags import AT_LEAST_1, option

STREAM = "-"  # standard input or output
TEXT_KINDS = ("csv", "tsv", "jsonl")  # of a pipe


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The trained model."""

    model_dir: str = option(..., "folder of the trained model")
    onnx: str | None = option(None, "ONNX file of the model, which answers in its place")
    set: list[str] = option([], "exit keys to override, e.g. exit_thres=0.3", metavar="KEY=VALUE")
    dtype: str = option(
        "fp32",
        "number type of the model; auto: bf16 where the processor has instructions for it",
        choices=("fp32", "bf16", "fp16", "auto"),
    )
    device: str = option(
        "auto", "device; auto: a GPU where there is one", choices=("auto", "cpu", "cuda")
    )
    torch_compile: bool = option(
        False,
        "on a GPU, compile the layer pass by torch.compile before it is captured as a graph: "
        "seconds for every shape of a batch, and a faster answer",
    )
    batch_size: int = option(32, "number of texts that share a layer pass", AT_LEAST_1)
    long_texts: str = option(
        "cut",
        "treatment of texts that are longer than the model reads; cut: leave out their end; "
        "windows: read all of them in overlapping windows, and combine the answers",
        choices=("cut", "windows"),
    )
    stop_score: float | None = option(
        None, "with --long_texts windows: score from which a window's answer stands for the text"
    )


@dataclass(frozen=True, kw_only=True)
class ColumnSettings:
    """Columns that are read, and columns that are added."""

    text_column_names: str | None = option(
        None,
        "names of the text columns, A or A,B; default: those of the training, or "
        "sentence1[,sentence2]",
    )
    prefix: str = option("", "prefix of the added columns label, score and exit_layer")
    all_scores: bool = option(False, "add the probability of every class")
    abstain_below: str | None = option(
        None,
        "score below which the label is left empty: a probability, e.g. 0.8; or a share of the dev "
        "rows, e.g. 5%, whose least certain ones are left empty",
    )
    on_error: str = option(
        "stop",
        "treatment of rows that cannot be read or have no text; stop: end with an error before any "
        "row is answered; skip: leave them out, and list them in OUTPUT.skipped.txt",
        choices=("stop", "skip"),
    )


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """The tables."""

    input_file: list[str] = option(
        ..., "tables with texts: CSV, TSV, JSON lines or Parquet; - is standard input"
    )
    output_file: str = option(
        ..., "table to write, in the format that the name ends in; - is standard output"
    )
    input_format: str | None = option(
        None, "format of a table from standard input", choices=TEXT_KINDS
    )
    output_format: str | None = option(
        None,
        "format of a table to standard output; default: that of the input",
        choices=TEXT_KINDS,
    )
    rows_per_part: int = option(
        2048, "number of rows that are answered and saved together", AT_LEAST_1
    )
    overwrite: bool = option(
        False, "replace an existing output file, or the parts of a run that has not ended"
    )

    def check(self) -> None:
        """Raise UserError for a format beside a file, whose name tells it."""
        if self.input_format and STREAM not in self.input_file:
            raise UserError(
                f"--input_format {self.input_format} is of standard input: a file's name tells its "
                "format; leave the flag out"
            )
        if self.output_format and self.output_file != STREAM:
            raise UserError(
                f"--output_format {self.output_format} is of standard output: a file's name tells "
                "its format; leave the flag out"
            )


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Ray Data."""

    ray: str | None = option(
        None,
        "Ray cluster that classifies Parquet files, into a folder of such files; auto: the cluster "
        "of this machine; local: a new one on this machine; or the address of a head node",
        metavar="ADDRESS",
    )
    concurrency: int | None = option(
        None,
        "number of actors, each with its own model; default: one for each GPU, or, without GPUs, "
        "for each CPU except one, which Ray Data needs",
        AT_LEAST_1,
    )
