"""Fetching of files whose SHA-256 is known, and unpacking of archives."""

import shutil
import socket
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from modeling.errors import UserError
from utils.files import write_file

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
