"""Fetching of files whose SHA-256 is known, unpacking of archives, and MRPC from its corpus."""

import shutil
import socket
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from glue.tables import read_lines
from modeling.errors import UserError
from utils.files import write_file, write_text

TIMEOUT = 60  # seconds without a byte


def download(url: str, target: Path, sha256: str) -> None:
    """Fetch `url` to `target`; what is there stays until all has come and the hash is right.

    Raises UserError when the network or the disk fails, or the file is another one.
    """
    from torch.hub import download_url_to_file  # takes seconds to import

    socket.setdefaulttimeout(TIMEOUT)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(url, str(target), sha256, progress=sys.stderr.isatty())
    except HTTPError as error:
        raise UserError(
            f"{url}: the server answered {error.code} {error.reason}; "
            "if the file has moved, run download_glue_data.py with its new home as --base_url"
        ) from error
    except (OSError, HTTPException, UnicodeError) as error:
        raise UserError(
            f"cannot fetch {url} to {target}: {getattr(error, 'reason', error)}; check the "
            "connection and the disk and run the same command again, or download_glue_data.py "
            "with a mirror as --base_url"
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"{url}: {error}; it broke off or is not GLUE's file: run the same command again"
        ) from error


def unpack(archive: Path, folder: str, names: Sequence[str], data_dir: Path) -> None:
    """Write the files `names` of the archive's folder to data_dir/folder, and no others."""
    with zipfile.ZipFile(archive) as file:
        for name in names:
            with file.open(f"{folder}/{name}") as source:
                write_file(data_dir / folder / name, partial(shutil.copyfileobj, source))


def assemble_mrpc(train: Path, test: Path, dev_ids: Path, target: Path) -> None:
    """Split MRPC's corpus, which GLUE may not host, into GLUE's files; test.tsv has no labels."""
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
