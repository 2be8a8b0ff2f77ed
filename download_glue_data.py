"""Fetch GLUE in the layout that run_glue.py reads, or write the bundled sample task.

    python download_glue_data.py --data_dir glue_data --tasks all
    python download_glue_data.py --data_dir glue_data --tasks RTE,MNLI,diagnostic
    python download_glue_data.py --data_dir glue_data --tasks sample
    python download_glue_data.py --tasks MRPC --path_to_mrpc ~/MSRParaphraseCorpus
    python download_glue_data.py --tasks all --base_url https://mirror.example/glue

Each task gets a folder, glue_data/RTE and so on, with its .tsv files. Files that are there stay as
they are; to fetch a task anew, remove its folder.

A mirror given as --base_url must hold the same files, with the same SHA-256, in the folders
glue/data and senteval/senteval_data.
"""

import shutil
import socket
import sys
import zipfile
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from elbert_base.errors import UserError
from glue.tables import read_lines
from glue.tasks import TASKS, get_task
from runs.files import write_file
from runs.flags import FlagParser
from runs.processes import run_script

BASE_URL = "https://dl.fbaipublicfiles.com"
FOLDERS = list(dict.fromkeys(task.folder for task in TASKS.values()))
DIAGNOSTIC = "AX.tsv"
OTHER_NAMES = {"QQP": "QQP-clean.zip", "QNLI": "QNLIv2.zip", "diagnostic": DIAGNOSTIC}
# GLUE may not host MRPC. SentEval does, and GLUE's dev set is a list of pairs of its train set.
TRAIN, TEST, DEV_IDS = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "mrpc_dev_ids.tsv"
SHA256 = {
    "CoLA.zip": "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
    "SST-2.zip": "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
    "STS-B.zip": "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85",
    "QQP-clean.zip": "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
    "MNLI.zip": "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
    "QNLIv2.zip": "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
    "RTE.zip": "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee",
    "WNLI.zip": "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46",
    DIAGNOSTIC: "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",
    TRAIN: "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
    TEST: "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
    DEV_IDS: "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
}
SAMPLE = Path(__file__).parent / "configs" / "sample" / "RTE"


def task_files(folder: str) -> list[str]:
    files = (task.files.values() for task in TASKS.values() if task.folder == folder)
    return sorted({name for names in files for name in names})


def fetch_file(name: str, target: Path, base_url: str) -> None:
    """Fetch a file of SHA256; UserError where it cannot be fetched, or has another hash."""
    from torch.hub import download_url_to_file  # takes seconds to import

    socket.setdefaulttimeout(60)  # seconds without a byte
    folder = "senteval/senteval_data" if name in (TRAIN, TEST) else "glue/data"
    url = f"{base_url}/{folder}/{name}"
    try:
        download_url_to_file(url, str(target), SHA256[name], progress=sys.stderr.isatty())
    except (OSError, HTTPException, ValueError, RuntimeError) as error:
        raise UserError(
            f"cannot fetch {url} to {target}: {error}; check the connection and the disk and run "
            "the same command again, or with a mirror of the same files as --base_url"
        ) from error


def fetch_mrpc(scratch: Path, base_url: str, path_to_mrpc: str | None) -> dict[str, bytes]:
    """Make MRPC's files of its sources: the corpus, which may be the user's, and GLUE's dev set."""
    corpus = Path(path_to_mrpc).expanduser() if path_to_mrpc else scratch
    for name in (TRAIN, TEST):
        if not path_to_mrpc:
            fetch_file(name, corpus / name, base_url)
        elif not (corpus / name).exists():
            raise UserError(f"no {name} in {corpus}, which --path_to_mrpc names")
    fetch_file(DEV_IDS, scratch / DEV_IDS, base_url)
    return assemble_mrpc(corpus / TRAIN, corpus / TEST, scratch / DEV_IDS)


def assemble_mrpc(train: Path, test: Path, dev_ids: Path) -> dict[str, bytes]:
    """Split MRPC's corpus, which GLUE may not host, into GLUE's files; test.tsv has no labels."""
    wanted = {tuple(cells) for cells in tsv_cells(dev_ids)}
    pairs, tests = tsv_cells(train), tsv_cells(test)
    ids = [tuple(cells[1:3]) for cells in pairs]
    if not wanted.issubset(ids) or any(len(cells) != 5 for cells in pairs + tests):
        raise UserError(
            f"{train} and {test} are not MRPC's: five columns, and {len(wanted)} pairs that are "
            "GLUE's dev set, belong there"
        )
    files = {
        "train.tsv": [x for x, pair in zip(pairs, ids, strict=True) if pair not in wanted],
        "dev.tsv": [pairs[0], *(x for x, pair in zip(pairs, ids, strict=True) if pair in wanted)],
        "test.tsv": [[str(i - 1) if i else "index", *x[1:]] for i, x in enumerate(tests)],
    }
    return {
        name: "".join("\t".join(cells) + "\n" for cells in rows).encode()
        for name, rows in files.items()
    }


def tsv_cells(path: Path) -> list[list[str]]:
    return [line.rstrip("\r\n").split("\t") for _, line in read_lines(path) if line.strip()]


def contents(
    folder: str, scratch: Path, base_url: str, path_to_mrpc: str | None
) -> dict[str, bytes]:
    """Fetch a task's files; return them by name."""
    if folder == "MRPC":
        return fetch_mrpc(scratch, base_url, path_to_mrpc)
    fetched = scratch / OTHER_NAMES.get(folder, f"{folder}.zip")
    fetch_file(fetched.name, fetched, base_url)
    if folder == "diagnostic":
        return {"diagnostic.tsv": fetched.read_bytes()}
    with zipfile.ZipFile(fetched) as archive:
        return {name: archive.read(f"{folder}/{name}") for name in task_files(folder)}


def fetch(folder: str, data_dir: Path, base_url: str, path_to_mrpc: str | None) -> None:
    """Write the files of a task that are missing."""
    paths = {name: data_dir / folder / name for name in task_files(folder)}
    missing = {name: path for name, path in paths.items() if not path.exists()}
    if missing:
        with TemporaryDirectory() as scratch:
            found = contents(folder, Path(scratch), base_url, path_to_mrpc)
        for name, path in missing.items():
            write_file(path, lambda file, name=name: file.write(found[name]))
    state = f"{', '.join(missing)} in" if missing else "already in"
    print(f"{folder}: {state} {data_dir / folder}")


def chosen_folders(tasks: str) -> list[str]:
    """List the folders of a comma-separated list, each once; "sample" stands for itself."""
    groups, folders = {"all": FOLDERS, "sample": ["sample"]}, []
    for name in tasks.split(","):
        folders += groups.get(name.strip().lower()) or [get_task(name).folder]
    return list(dict.fromkeys(folders))


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--data_dir", type=Path, default="glue_data", help="folder for the task folders")
    add("--tasks", default="all", help="comma-separated names, all, or sample")
    add("--path_to_mrpc", help=f"a folder with {TRAIN} and {TEST}")
    add("--base_url", default=BASE_URL, help="address of the server or of a mirror")
    args = parser.parse_args()
    for folder in chosen_folders(args.tasks):
        if folder == "sample":
            if not (args.data_dir / "sample").exists():
                shutil.copytree(SAMPLE, args.data_dir / "sample")
            print(f"{args.data_dir / 'sample'}: the bundled sample, a puzzle in RTE's layout")
        else:
            fetch(folder, args.data_dir, args.base_url.rstrip("/"), args.path_to_mrpc)


if __name__ == "__main__":
    run_script(main)
