"""MRPC as GLUE has it, from the corpus that GLUE may not host."""

from pathlib import Path

from glue.tables import read_lines
from modeling.errors import UserError
from utils.files import write_text


def assemble_mrpc(train: Path, test: Path, dev_ids: Path, target: Path) -> None:
    """Split the corpus into GLUE's train.tsv, dev.tsv and test.tsv, the last without labels."""
    wanted = {tuple(cells) for cells in _cells(dev_ids, 2)}
    header, *pairs = _cells(train, 5)
    found = {tuple(cells[1:3]) for cells in pairs}
    if wanted - found:
        raise UserError(
            f"{len(wanted - found)} of the {len(wanted)} dev pairs of {dev_ids} are not in "
            f"{train}; remove both and run the same command again"
        )
    dev = [cells for cells in pairs if tuple(cells[1:3]) in wanted]
    rest = [cells for cells in pairs if tuple(cells[1:3]) not in wanted]
    test_header, *test_pairs = _cells(test, 5)
    unlabelled = [[str(index), *cells[1:]] for index, cells in enumerate(test_pairs)]
    _write_cells(target / "train.tsv", [header, *rest])
    _write_cells(target / "dev.tsv", [header, *dev])
    _write_cells(target / "test.tsv", [["index", *test_header[1:]], *unlabelled])


def _cells(path: Path, width: int) -> list[list[str]]:
    rows = []
    for number, line in read_lines(path):
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) == width:
            rows.append(cells)
        elif cells != [""]:
            raise UserError(
                f"{path}, line {number}: {len(cells)} columns where {width} belong; "
                "remove the file and fetch it again"
            )
    if not rows:
        raise UserError(f"{path} is empty")
    return rows


def _write_cells(path: Path, rows: list[list[str]]) -> None:
    write_text(path, "".join("\t".join(cells) + "\n" for cells in rows))
