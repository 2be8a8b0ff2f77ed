"""Fetch GLUE in the layout that run_glue.py reads, or write the bundled sample task.

    python download_glue_data.py --data_dir glue_data --tasks all
    python download_glue_data.py --data_dir glue_data --tasks RTE,MNLI,diagnostic
    python download_glue_data.py --data_dir glue_data --tasks sample
    python download_glue_data.py --tasks MRPC --path_to_mrpc ~/MSRParaphraseCorpus
    python download_glue_data.py --tasks all --base_url https://mirror.example/glue

Each task gets a folder, glue_data/RTE and so on, with its .tsv files (MRPC's also keeps the three
files that these are made from). A task whose files are there, with a test file as long as GLUE's,
is not fetched again; otherwise its files are replaced.
An interrupted download is resumed when the same command is run again.

A mirror given as --base_url has the files under the paths of ARCHIVES and of MRPC below.
"""

import argparse
import http.client
import os
import re
import stat
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath

from tqdm import tqdm

from glue.files import run_script, write_text
from glue.tables import read_lines
from glue.tasks import TASKS, get_task
from modeling.errors import UserError

BASE_URL = "https://dl.fbaipublicfiles.com"
ARCHIVES = {
    "CoLA": "glue/data/CoLA.zip",
    "SST-2": "glue/data/SST-2.zip",
    "STS-B": "glue/data/STS-B.zip",
    "QQP": "glue/data/QQP-clean.zip",
    "MNLI": "glue/data/MNLI.zip",
    "QNLI": "glue/data/QNLIv2.zip",
    "RTE": "glue/data/RTE.zip",
    "WNLI": "glue/data/WNLI.zip",
}
DIAGNOSTIC = "glue/data/AX.tsv"
# GLUE may not host MRPC. SentEval does, and GLUE's dev set is a list of pairs of its train set.
MRPC = "senteval/senteval_data"
MRPC_TRAIN, MRPC_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"
MRPC_DEV_IDS = "glue/data/mrpc_dev_ids.tsv"
FOLDERS = [*ARCHIVES, "MRPC", "diagnostic"]
SAMPLE = Path(__file__).parent / "configs" / "sample" / "RTE"

TIMEOUT = 60  # seconds without a byte
CHUNK = 1 << 16  # bytes
# MNLI, the largest, has about 0.3 GiB packed and under 2 GiB unpacked.
MAX_DOWNLOAD_BYTES = 1 << 30
MAX_UNPACKED_BYTES = 4 << 30


# One file.


@contextmanager
def _network_errors(url: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        raise UserError(
            f"{url}: the server answered {error.code} {error.reason}; "
            "if the file has moved, pass its new home with --base_url"
        ) from error
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"cannot fetch {url}: {reason}; check the connection and run the same command again "
            "(it resumes), or pass a mirror with --base_url"
        ) from error


def _request(url: str, start: int = 0) -> http.client.HTTPResponse:
    headers = {"User-Agent": Path(__file__).name}
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


# Archives.


def check_members(archive: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive that could write outside its folder or fill the disk."""
    for member in members:
        path = PureWindowsPath(member.filename)  # takes both / and \ as separators
        if path.drive or path.root or ".." in path.parts:
            raise UserError(f"{archive}: refused, {member.filename!r} leads out of the data folder")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise UserError(f"{archive}: refused, {member.filename!r} is a symbolic link")
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


def unpack(archive: Path, folder: str, data_dir: Path) -> None:
    """Move the task's .tsv files from the archive to data_dir/folder once all are unpacked.

    zipfile checks each file's CRC and never gives more than its announced size. Raises UserError
    when the archive is damaged, lacks a file or is refused.
    """
    names = task_files(folder)
    with _damage_errors(archive):
        file = zipfile.ZipFile(archive)
    with file, tempfile.TemporaryDirectory(dir=data_dir, prefix=f".{folder}.") as scratch:
        check_members(archive, file.infolist())
        for name in names:
            if f"{folder}/{name}" not in file.namelist():
                raise UserError(f"{archive}: {folder}/{name} is not in it")
            with open(Path(scratch, name), "wb") as target:
                for chunk in _chunks(archive, file, f"{folder}/{name}"):
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


def fetch_archive(folder: str, data_dir: Path, base_url: str) -> None:
    archive = data_dir / Path(ARCHIVES[folder]).name
    if not archive.exists():
        download(f"{base_url}/{ARCHIVES[folder]}", archive)
    try:
        unpack(archive, folder, data_dir)
    except OSError as error:  # the disk: the archive is good, and stays
        raise UserError(f"cannot unpack {archive}: {error.strerror}") from error
    except UserError:  # the archive: without it, the next run fetches it anew
        archive.unlink()
        raise
    archive.unlink()


# MRPC.


def fetch_mrpc(target: Path, base_url: str, path_to_mrpc: str | None) -> None:
    source = Path(path_to_mrpc).expanduser() if path_to_mrpc else target
    for name in (MRPC_TRAIN, MRPC_TEST):
        if path_to_mrpc and not (source / name).exists():
            raise UserError(f"no {name} in {source}, which --path_to_mrpc names")
        if not (source / name).exists():
            download(f"{base_url}/{MRPC}/{name}", source / name)
    dev_ids = source / Path(MRPC_DEV_IDS).name
    if not dev_ids.exists():
        dev_ids = target / dev_ids.name
        download(f"{base_url}/{MRPC_DEV_IDS}", dev_ids)
    assemble_mrpc(source / MRPC_TRAIN, source / MRPC_TEST, dev_ids, target)


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


# Tasks.


def task_files(folder: str) -> list[str]:
    files = (task.files.values() for task in TASKS.values() if task.folder == folder)
    return sorted({name for names in files for name in names})


def is_complete(target: Path) -> bool:
    """Whether GLUE's own files are there, and not the sample's: its test files have known sizes."""
    if not all((target / name).exists() for name in task_files(target.name)):
        return False
    tasks = [task for task in TASKS.values() if task.folder == target.name]
    return all(_count_lines(target / task.files["test"]) == task.test_lines for task in tasks)


def _count_lines(path: Path) -> int:
    try:
        return sum(1 for _ in read_lines(path))
    except UserError:
        return 0  # not a file that GLUE has


def write_sample(data_dir: Path) -> None:
    target = data_dir / "RTE"
    names = task_files("RTE")
    texts = {
        target / name: "".join(line for _, line in read_lines(SAMPLE / name)) for name in names
    }
    for path, text in texts.items():
        if path.exists() and path.read_bytes() != text.encode("utf-8"):
            raise UserError(f"{path} is not the sample's; pass another --data_dir to keep both")
    for path, text in texts.items():
        write_text(path, text)
    print(
        f"sample: {target} now has the bundled sample, made in RTE's layout; it is not GLUE's RTE"
    )


def fetch(folder: str, data_dir: Path, base_url: str, path_to_mrpc: str | None) -> None:
    target = data_dir / folder
    if is_complete(target):
        print(f"{folder}: already in {target}")
        return
    if folder == "MRPC":
        fetch_mrpc(target, base_url, path_to_mrpc)
    elif folder == "diagnostic":
        download(f"{base_url}/{DIAGNOSTIC}", target / "diagnostic.tsv")
    else:
        fetch_archive(folder, data_dir, base_url)
    print(f"{folder}: {', '.join(task_files(folder))} in {target}")
    if not is_complete(target):
        print(f"{folder}: warning: the test file is not as long as GLUE's")


def chosen_folders(tasks: str) -> list[str]:
    """The folders of a comma-separated list, each once; "sample" stands for itself."""
    folders: list[str] = []
    for name in filter(None, (name.strip() for name in tasks.split(","))):
        if name.lower() == "all":
            folders += FOLDERS
        elif name.lower() == "sample":
            folders.append("sample")
        else:
            folders.append(_folder(name))
    return list(dict.fromkeys(folders))


def _folder(name: str) -> str:
    try:
        return get_task(name).folder
    except UserError as error:
        raise UserError(f"--tasks: {error}, and: all, sample") from error


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_dir", default="glue_data", help="where the task folders go")
    parser.add_argument("--tasks", default="all", help="names with commas between; all; sample")
    parser.add_argument("--path_to_mrpc", help=f"a folder with {MRPC_TRAIN} and {MRPC_TEST}")
    parser.add_argument("--base_url", default=BASE_URL, help="the server, or a mirror of it")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    data_dir, base_url = Path(args.data_dir), args.base_url.rstrip("/")
    if not re.match(r"https?://", base_url):
        raise UserError(f"--base_url {base_url!r} does not start with http:// or https://")
    folders = chosen_folders(args.tasks)
    if not folders:
        raise UserError("--tasks is empty; name tasks, all or sample")
    for folder in folders:
        if folder == "sample":
            write_sample(data_dir)
        else:
            fetch(folder, data_dir, base_url, args.path_to_mrpc)


if __name__ == "__main__":
    run_script(main)
