"""A table's rows as training rows and dev rows: equal texts together, labels in equal shares."""

from collections import Counter
from collections.abc import Mapping, Sequence

from glue.splits import Split, parse_number, split_labels
from glue.tables import Row, as_csv
from glue.tasks import Task
from modeling.errors import UserError
from runs.folder import RunFolder
from runs.output_dir import has_files
from training.classifier.project import DEV_FILE, TRAIN_FILE, Project

SPLIT_ADVICE = "give more rows, or a --validation_file"


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
    """List the labels that a row has; none where labels are scores."""
    if task.multi_label:
        if task.separator:
            return split_labels(task, row)
        cells = {label: row[label].strip().lower() for label in task.labels}
        return [label for label, cell in cells.items() if cell == "true" or parse_number(cell) == 1]
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
