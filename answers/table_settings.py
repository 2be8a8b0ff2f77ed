"""The flags of classify.py. Loads no torch."""

from dataclasses import dataclass

from runs.flags import AT_LEAST_1, option

STREAM = "-"  # standard input or output
TEXT_KINDS = ("csv", "tsv", "jsonl")  # of a pipe


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The trained model."""

    model_dir: str = option(..., "folder of the trained model")
    onnx: str | None = option(None, "exported file that answers in the model's place")
    set: list[str] = option([], "exit keys to override, e.g. exit_thres=0.3", metavar="KEY=VALUE")
    dtype: str = option(
        "fp32",
        "number type; auto: bf16 where the processor has it",
        choices=("fp32", "bf16", "fp16", "auto"),
    )
    device: str = option("auto", "auto: a GPU where there is one", choices=("auto", "cpu", "cuda"))
    batch_size: int = option(32, "texts that share a layer pass", AT_LEAST_1)
    long_texts: str = option(
        "cut",
        "what becomes of texts that are longer than the model reads: cut, or answered in windows",
        choices=("cut", "windows"),
    )
    stop_score: float | None = option(
        None, "with --long_texts windows: score at which the first window answers"
    )


@dataclass(frozen=True, kw_only=True)
class ColumnSettings:
    """What is read of a row, and what is added to it."""

    text_column_names: str | None = option(
        None, "text columns, A or A,B; default: the training's, or sentence1[,sentence2]"
    )
    prefix: str = option("", "prefix of the added columns: label, score, exit_layer")
    all_scores: bool = option(False, "add the probability of every class")
    on_error: str = option(
        "stop",
        "rows that cannot be read, or have no text: stop before anything is answered, or leave "
        "them out and list them in OUTPUT.skipped.txt",
        choices=("stop", "skip"),
    )


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """The tables."""

    input_file: list[str] = option(
        ..., "tables with texts: CSV, TSV, JSON lines or Parquet; - is standard input"
    )
    output_file: str = option(
        ..., "table to write, of the kind that its name ends in; - is standard output"
    )
    input_format: str | None = option(
        None, "kind of a table from standard input", choices=TEXT_KINDS
    )
    output_format: str | None = option(
        None, "kind of a table to standard output; default: the input's", choices=TEXT_KINDS
    )
    rows_per_part: int = option(2048, "rows that are answered and saved together", AT_LEAST_1)
    overwrite: bool = option(False, "replace an output file that exists, or an unfinished run's")


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Ray Data."""

    ray: str | None = option(
        None,
        "score Parquet files on a Ray cluster into a folder of them: auto, this machine's cluster; "
        "local, one started here; or the address of a head",
        metavar="ADDRESS",
    )
    concurrency: int | None = option(
        None,
        "actors with a model each; default: one for each GPU, else for each CPU but one, which "
        "reads",
        AT_LEAST_1,
    )
