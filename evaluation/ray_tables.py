"""Parquet tables answered on a Ray cluster: Ray Data reads, answers and writes them in a stream.

Each actor holds one model. Ray starts a lost actor again and repeats what it had not handed on.
"""

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glue.table_writing import file_schema
from glue.tables import kind_of, table_rows
from modeling.errors import UserError
from runs.console import counted, say
from runs.files import clear_partials, partial_name
from runs.used_files import change_time, changed_message

from .scored_tables import ErrorLog, find_tables, is_among, load_scorer
from .table_settings import ColumnSettings, ModelSettings, RaySettings, TableSettings


class TableActor:
    """An actor's model; Ray Data calls it with a batch of rows, a pyarrow Table.

    Args:
        names: columns of the tables.
        model_files: hashes of the files that the model is loaded from. Actors start at different
            times, and a lost one starts again.

    Raises UserError where the files are others by now.
    """

    def __init__(
        self,
        model: ModelSettings,
        columns: ColumnSettings,
        names: Sequence[str],
        model_files: dict[str, str],
    ) -> None:
        self.scorer, files_now = load_scorer(model, columns)
        for name in {*files_now, *model_files}:
            if files_now.get(name) != model_files.get(name):
                raise UserError(changed_message(Path(model.model_dir, name)))
        self.scorer.choose_columns(Path("the table"), names)
        self.on_error = columns.on_error

    def __call__(self, batch: Any) -> Any:
        """Return the batch with the added columns."""
        import pyarrow

        rows, texts = [], []
        errors = ErrorLog(self.on_error)
        for number, record in enumerate(table_rows(batch)):
            try:
                texts.append(self.scorer.text_of(f"the row {str(record)[:200]}", record))
                rows.append(number)
            except UserError as error:
                errors(error)
        answers = self.scorer.add_answers([{} for _ in rows], texts)
        answered = batch.take(pyarrow.array(rows, pyarrow.int64()))
        answer_table = pyarrow.Table.from_pylist(answers, self.scorer.schema())
        for name in answer_table.column_names:
            answered = answered.append_column(answer_table.field(name), answer_table[name])
        return answered


def score_on_ray(
    model: ModelSettings, columns: ColumnSettings, tables: TableSettings, engine: RaySettings
) -> None:
    """Write the rows of Parquet tables, with the answers of a trained model, into a folder.

    The files of the folder are put in place together, when all rows are there.

    Raises UserError for flags, a model, tables or a cluster that do not fit.
    """
    output = check_folder(tables)
    paths = list(find_tables(tables.input_file))
    names = check_tables(paths)
    # Also on this machine, so that a wrong flag is an error before the cluster works.
    scorer, model_files = load_scorer(replace(model, device="cpu"), columns)
    scorer.choose_columns(paths[0], names)
    check_texts(paths, scorer.text_columns, columns.on_error)
    say(f"{model.model_dir}: {scorer.rule}")
    absolute = replace(
        model,
        model_dir=os.path.abspath(model.model_dir),
        onnx=os.path.abspath(model.onnx)
        if model.onnx and os.path.exists(model.onnx)
        else model.onnx,
    )
    total = row_count(paths)
    times = {path: change_time(path) for path in paths}
    unfinished = output.with_name(partial_name(output.name))
    ray = connect(str(engine.ray))
    try:
        actors = actor_options(ray.cluster_resources(), engine, model)
        rows, files = counted(total, "row"), counted(len(paths), "file")
        say(f"{rows} in {files}; {describe(actors)}")
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = sys.stderr.isatty()
        dataset = ray.data.read_parquet([str(path.absolute()) for path in paths])
        answered = dataset.map_batches(
            TableActor,
            fn_constructor_args=(absolute, columns, names, model_files),
            batch_size=tables.rows_per_part,
            batch_format="pyarrow",
            **actors,
        )
        answered.write_parquet(str(unfinished.absolute()))
    except ray.exceptions.RayError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise UserError(f"--ray {engine.ray}: {root_cause(error)}") from error
    finally:
        ray.shutdown()
    for path, time in times.items():
        if change_time(path) != time:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise UserError(changed_message(path))
    finish(unfinished, output, total, columns.on_error)


def check_folder(tables: TableSettings) -> Path:
    """Return the folder to write; raises UserError where it is there already."""
    output = Path(tables.output_file)
    if kind_of(output):
        raise UserError(f"--output_file {output}: with --ray, give a folder for Parquet files")
    if output.exists():
        raise UserError(f"--output_file {output} exists: choose another name")
    for name in tables.input_file:
        if is_among(output, Path(name)):
            raise UserError(f"--output_file {output} is among the tables to read")
    output.parent.mkdir(parents=True, exist_ok=True)
    clear_partials(output.parent, output.name)
    return output


def check_tables(paths: Sequence[Path]) -> list[str]:
    """Return the columns of Parquet files.

    Raises UserError for another kind of file, and for files of different columns.
    """
    for path in paths:
        if kind_of(path) != ".parquet":
            raise UserError(f"{path}: with --ray, tables are Parquet files")
    names = file_schema(paths[0]).names
    for path in paths:
        other_names = file_schema(path).names
        if other_names != names:
            raise UserError(
                f"{path} has the columns {', '.join(other_names)[:200]}; {paths[0]} has "
                f"{', '.join(names)[:200]}: classify them one by one"
            )
    return names


def check_texts(paths: Sequence[Path], text_columns: Sequence[str], on_error: str) -> None:
    """Raise UserError for rows without a text, as far as the files' statistics tell."""
    from pyarrow import parquet

    if on_error == "skip":
        return
    for path in paths:
        metadata = parquet.read_metadata(path)
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for index in range(row_group.num_columns):
                column = row_group.column(index)
                statistics = column.statistics
                is_text = column.path_in_schema in text_columns
                if is_text and statistics is not None and statistics.null_count:
                    raise UserError(
                        f"{path}, row group {group}: {statistics.null_count} rows without a text "
                        f"in column {column.path_in_schema!r} (--on_error skip leaves such rows "
                        "out)"
                    )


def row_count(paths: Sequence[Path]) -> int:
    """Return the number of rows in Parquet files."""
    from pyarrow import parquet

    return sum(parquet.read_metadata(path).num_rows for path in paths)


def connect(address: str) -> Any:
    """Connect to a cluster, and return the module ray.

    address: of its head; "auto" for the one that this machine belongs to; "local" starts one here.

    Raises UserError where Ray is not installed, or does not answer.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UserError(f"--ray: {error}; pip install -r requirements/ray.txt") from error
    host, colon, port = address.rpartition(":")
    try:
        if colon and "/" not in host and port.isdecimal():
            # Ray itself tries for minutes.
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"--ray {address}: {reason}") from error
    return ray


def actor_options(
    resources: dict[str, float], engine: RaySettings, model: ModelSettings
) -> dict[str, Any]:
    """Return how many actors there are, and what each gets, as `map_batches` takes it.

    An actor has a GPU where the cluster has some, otherwise a CPU. One CPU stays free, since tasks
    read and write: without it, Ray Data would wait for ever.

    resources: of the cluster, by Ray's names.

    Raises UserError where the actors do not fit into the cluster.
    """
    cpus = int(resources.get("CPU", 0))
    gpus = 0 if model.onnx else int(resources.get("GPU", 0))
    most = min(gpus, cpus - 1) if gpus else cpus - 1
    wanted = engine.concurrency or max(most, 1)
    if wanted > most:
        have = f"{cpus} CPUs" + (f" and {gpus} GPUs" if gpus else "")
        raise UserError(
            f"--concurrency {wanted}: the cluster has {have}, and one CPU must be left for "
            f"reading: at most {most} actors fit; add nodes, or lower --concurrency"
        )
    return {"concurrency": wanted, "num_cpus": 1, "num_gpus": 1 if gpus else 0}


def describe(actors: dict[str, Any]) -> str:
    """Say what the actors are, in words."""
    kind = "GPU and a CPU" if actors["num_gpus"] else "CPU"
    return f"{actors['concurrency']} actor(s), each with one model and a {kind}"


def root_cause(error: BaseException) -> str:
    """Return the message of the error below those that Ray wraps around it."""
    below: Any = error
    while below:
        error = below
        below = getattr(error, "cause", None) or error.__cause__
    return " ".join(str(error).split())[-400:]


def finish(unfinished: Path, output: Path, total: int, on_error: str) -> None:
    """Put the folder in its place, when all rows are there.

    Raises UserError where there are other rows than those that were read.
    """
    written = row_count(sorted(unfinished.glob("*.parquet")))
    lost = total - written
    if lost < 0 or (lost and on_error == "stop"):
        raise UserError(
            f"{unfinished} has {written} of {total} rows: the folder must be on a disk that all "
            "nodes share, at the same path"
        )
    unfinished.rename(output)
    say(f"{output}: {written} rows")
    if lost:
        say(f"rows left out: {lost}")
