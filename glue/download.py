"""Fetching over a connection that may break, and unpacking an archive that may be hostile."""

import http.client
import os
import re
import stat
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath

from tqdm import tqdm

from modeling.errors import UserError

TIMEOUT = 60  # seconds without a byte
CHUNK = 1 << 16  # bytes
# MNLI, the largest, has about 0.3 GiB packed and under 2 GiB unpacked.
MAX_DOWNLOAD_BYTES = 1 << 30
MAX_UNPACKED_BYTES = 4 << 30


@contextmanager
def _network_errors(url: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        raise UserError(
            f"{url}: the server answered {error.code} {error.reason}; "
            "if the file has moved, run download_glue_data.py with its new home as --base_url"
        ) from error
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"cannot fetch {url}: {reason}; check the connection and run the same command again "
            "(it resumes), or download_glue_data.py with a mirror as --base_url"
        ) from error


def _request(url: str, start: int = 0) -> http.client.HTTPResponse:
    headers = {"User-Agent": "download_glue_data.py"}
    if start:
        headers["Range"] = f"bytes={start}-"
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)


def _open(url: str, start: int) -> tuple[http.client.HTTPResponse, int, int | None]:
    """The response, the offset in bytes at which it begins, and the whole file's size if told."""
    if start:
        try:
            response = _request(url, start)
        except urllib.error.HTTPError as error:
            if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
        else:
            span = response.headers.get("Content-Range", "")
            if match := re.fullmatch(rf"bytes {start}-\d+/(\d+)", span):
                return response, start, int(match[1])
            response.close()  # no resuming here: what the server sent is not what was asked for
    response = _request(url)
    size = response.headers.get("Content-Length", "")
    return response, 0, int(size) if size.isdigit() else None


def download(url: str, target: Path) -> None:
    """Fetch `url` to `target` by way of target.part, which a later call resumes.

    Raises UserError when the network or the disk fails, or the file is not as long as announced.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _network_errors(url):
            response, start, total = _open(url, part.stat().st_size if part.exists() else 0)
        with response:
            size = _write_response(url, response, part, start, total)
        if total is not None and size != total:
            raise UserError(
                f"{url}: the connection ended after {size} of {total} bytes; "
                "run the same command again to resume"
            )
        os.replace(part, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error


def _write_response(
    url: str, response: http.client.HTTPResponse, part: Path, start: int, total: int | None
) -> int:
    """Put the response into `part` from offset `start` on; returns the size it then has."""
    bar = tqdm(
        total=total, initial=start, unit="B", unit_scale=True, desc=url.split("/")[-1], disable=None
    )
    size = start
    with open(part, "ab") as file, bar:
        file.truncate(start)
        while True:
            if max(size, total or 0) > MAX_DOWNLOAD_BYTES:
                raise UserError(f"{url}: larger than {MAX_DOWNLOAD_BYTES} bytes, so not GLUE's")
            with _network_errors(url):
                chunk = response.read(CHUNK)
            if not chunk:
                return size
            file.write(chunk)
            size += len(chunk)
            bar.update(len(chunk))


def check_members(archive: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive that could write outside its folder, or fill the memory or the disk."""
    for member in members:
        path = PureWindowsPath(member.filename)  # takes both / and \ as separators
        if path.drive or path.root or ".." in path.parts:
            raise UserError(f"{archive}: refused, {member.filename!r} leads out of the data folder")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise UserError(f"{archive}: refused, {member.filename!r} is a symbolic link")
        # Python unpacks bzip2 and LZMA in pieces of any size, whatever size is announced.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(
                f"{archive}: refused, {member.filename!r} is compressed by method "
                f"{member.compress_type}; allowed are stored (0) and deflate (8)"
            )
    size = sum(member.file_size for member in members)
    if size > MAX_UNPACKED_BYTES:
        raise UserError(f"{archive}: refused, it unpacks to {size} bytes")


@contextmanager
def _damage_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # zipfile and the unpackers tell damage by a dozen kinds
        raise UserError(
            f"{archive} is damaged ({error}) and was removed; run the same command again"
        ) from error


def unpack(archive: Path, folder: str, names: Sequence[str], data_dir: Path) -> None:
    """Move the files `names` of the archive's folder to data_dir/folder once all are unpacked.

    zipfile checks each file's CRC. Raises UserError when the archive is damaged, lacks a file or is
    refused.
    """
    size = 0
    with _damage_errors(archive):
        file = zipfile.ZipFile(archive)
    with file, tempfile.TemporaryDirectory(dir=data_dir, prefix=f".{folder}.") as scratch:
        check_members(archive, file.infolist())
        for name in names:
            if f"{folder}/{name}" not in file.namelist():
                raise UserError(f"{archive}: {folder}/{name} is not in it")
            with open(Path(scratch, name), "wb") as target:
                for chunk in _chunks(archive, file, f"{folder}/{name}"):
                    size += len(chunk)
                    if size > MAX_UNPACKED_BYTES:  # whatever it announces
                        raise UserError(f"{archive}: refused, it unpacks to {size} bytes and more")
                    target.write(chunk)
        (data_dir / folder).mkdir(exist_ok=True)
        for name in names:
            os.replace(Path(scratch, name), data_dir / folder / name)


def _chunks(archive: Path, file: zipfile.ZipFile, member: str) -> Iterator[bytes]:
    with _damage_errors(archive):
        source = file.open(member)
    with source:
        while True:
            with _damage_errors(archive):
                chunk = source.read(CHUNK)
            if not chunk:
                return
            yield chunk
