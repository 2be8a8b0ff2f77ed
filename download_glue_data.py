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
import re
from pathlib import Path

from glue.download import download, unpack
from glue.mrpc import assemble_mrpc
from glue.tables import read_lines
from glue.tasks import TASKS, get_task
from modeling.errors import UserError
from training.settings import FlagParser
from utils.files import run_script, write_text

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


def fetch_archive(folder: str, data_dir: Path, base_url: str) -> None:
    archive = data_dir / Path(ARCHIVES[folder]).name
    if not archive.exists():
        download(f"{base_url}/{ARCHIVES[folder]}", archive)
    try:
        unpack(archive, folder, task_files(folder), data_dir)
    except OSError as error:  # the disk: the archive is good, and stays
        raise UserError(f"cannot unpack {archive}: {error.strerror}") from error
    except UserError:  # the archive: without it, the next run fetches it anew
        archive.unlink()
        raise
    archive.unlink()


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
    groups, folders = {"all": FOLDERS, "sample": ["sample"]}, []
    for name in filter(None, map(str.strip, tasks.split(","))):
        try:
            folders += groups.get(name.lower()) or [get_task(name).folder]
        except UserError as error:
            raise UserError(f"--tasks: {error}, and: all, sample") from error
    return list(dict.fromkeys(folders))


def parse_arguments() -> argparse.Namespace:
    parser = FlagParser(__doc__)
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
