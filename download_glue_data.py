"""Download the GLUE tasks for run_glue.py, or write the bundled sample task.

    python download_glue_data.py --data_dir glue_data --tasks all
    python download_glue_data.py --data_dir glue_data --tasks RTE,MNLI,diagnostic
    python download_glue_data.py --data_dir glue_data --tasks sample
    python download_glue_data.py --tasks MRPC --path_to_mrpc ~/MSRParaphraseCorpus
    python download_glue_data.py --tasks all --base_url https://mirror.example/glue

Each task gets a folder with its .tsv files, such as glue_data/RTE. Files that are already there
stay as they are; to download a task again, remove its folder.

A mirror that --base_url names must have the same files, with the same SHA-256, in the folders
glue/data and senteval/senteval_data.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

import shutil
import socket
import zipfile
from http.client import HTTPException
from tempfile import TemporaryDirectory

from glue.tables import read_lines
from glue.tasks import TASKS, get_task
from modeling.errors import UserError
from runs.files import check_place, write_file
from runs.flags import FlagParser
from runs.processes import run_script

BASE_URL = "https://dl.fbaipublicfiles.com"
FOLDERS = list(dict.fromkeys(task.folder for task in TASKS.values()))
DIAGNOSTIC = "AX.tsv"
OTHER_NAMES = {"QQP": "QQP-clean.zip", "QNLI": "QNLIv2.zip", "diagnostic": DIAGNOSTIC}
# GLUE may not host MRPC. SentEval does, and GLUE's dev set is a list of pairs of its train set.
MRPC_TRAIN = "msr_paraphrase_train.txt"
MRPC_TEST = "msr_paraphrase_test.txt"
MRPC_DEV_IDS = "mrpc_dev_ids.tsv"
MRPC_COLUMNS = 5  # the label, two ids, two texts
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
    MRPC_TRAIN: "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
    MRPC_TEST: "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
    MRPC_DEV_IDS: "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
}
SAMPLE = Path(__file__).resolve().parent / "configs" / "sample" / "RTE"


# Fetching.


def chosen_folders(tasks: str) -> list[str]:
    """List the folders of a comma-separated list of tasks, each once; "sample" stands for itself.

    Raises UserError for an unknown task.
    """
    folders = []
    for text in tasks.split(","):
        name = text.strip()
        if name.lower() == "all":
            folders += FOLDERS
        elif name.lower() == "sample":
            folders.append("sample")
        else:
            folders.append(get_task(name).folder)
    return list(dict.fromkeys(folders))


def task_files(folder: str) -> list[str]:
    """List the files of the tasks that share a folder, as MNLI's two do."""
    names: set[str] = set()
    for task in TASKS.values():
        if task.folder == folder:
            names.update(task.files.values())
    return sorted(names)


def fetch_task(folder: str, data_dir: Path, base_url: str, path_to_mrpc: str | None) -> None:
    """Write the files of a task that are missing."""
    missing = [name for name in task_files(folder) if not (data_dir / folder / name).exists()]
    if not missing:
        print(f"{folder}: already in {data_dir / folder}")
        return
    with TemporaryDirectory() as scratch:
        contents = task_contents(folder, Path(scratch), base_url, path_to_mrpc)
    for name in missing:
        content = contents[name]
        write_file(data_dir / folder / name, lambda file, content=content: file.write(content))
    print(f"{folder}: {', '.join(missing)} in {data_dir / folder}")


def task_contents(
    folder: str, scratch: Path, base_url: str, path_to_mrpc: str | None
) -> dict[str, bytes]:
    """Fetch a task, and return the content of its files by name.

    scratch: a folder for what is fetched.
    """
    if folder == "MRPC":
        return fetch_mrpc(scratch, base_url, path_to_mrpc)
    fetched = scratch / OTHER_NAMES.get(folder, f"{folder}.zip")
    fetch_file(fetched.name, fetched, base_url)
    if folder == "diagnostic":
        return {"diagnostic.tsv": fetched.read_bytes()}
    with zipfile.ZipFile(fetched) as archive:
        return {name: archive.read(f"{folder}/{name}") for name in task_files(folder)}


def fetch_file(name: str, target: Path, base_url: str) -> None:
    """Fetch a file of SHA256; raises UserError if that fails, or if it has another hash."""
    from torch.hub import download_url_to_file  # takes seconds to import

    socket.setdefaulttimeout(60)  # seconds without a byte
    folder = "senteval/senteval_data" if name in (MRPC_TRAIN, MRPC_TEST) else "glue/data"
    url = f"{base_url}/{folder}/{name}"
    try:
        download_url_to_file(url, str(target), SHA256[name], progress=sys.stderr.isatty())
    except (OSError, HTTPException, ValueError, RuntimeError) as error:
        raise UserError(
            f"cannot fetch {url} to {target}: {error}; check the connection and the disk, and give "
            "the same command again, or name a mirror of the same files by --base_url"
        ) from error


# MRPC.


def fetch_mrpc(scratch: Path, base_url: str, path_to_mrpc: str | None) -> dict[str, bytes]:
    """Make MRPC's files from the corpus, which may be the user's, and GLUE's list of dev pairs."""
    if path_to_mrpc:
        corpus = Path(path_to_mrpc).expanduser()
        for name in (MRPC_TRAIN, MRPC_TEST):
            if not (corpus / name).exists():
                raise UserError(f"no {name} in {corpus}, which --path_to_mrpc names")
    else:
        corpus = scratch
        for name in (MRPC_TRAIN, MRPC_TEST):
            fetch_file(name, corpus / name, base_url)
    dev_ids = scratch / MRPC_DEV_IDS
    fetch_file(MRPC_DEV_IDS, dev_ids, base_url)
    return assemble_mrpc(corpus / MRPC_TRAIN, corpus / MRPC_TEST, dev_ids)


def assemble_mrpc(train: Path, test: Path, dev_ids: Path) -> dict[str, bytes]:
    """Split MRPC's corpus into GLUE's files, of which test.tsv has no labels.

    Args:
        train, test: the corpus, each line a label, two ids and two texts, under a header.
        dev_ids: the pairs of ids that are GLUE's dev set.

    Returns:
        The content of train.tsv, dev.tsv and test.tsv.

    Raises:
        UserError: the corpus is not MRPC's.
    """
    dev_pairs = {tuple(cells) for cells in tsv_cells(dev_ids)}
    train_rows = tsv_cells(train)
    test_rows = tsv_cells(test)
    has_dev_pairs = dev_pairs <= {id_pair(cells) for cells in train_rows}
    has_columns = all(len(cells) == MRPC_COLUMNS for cells in train_rows + test_rows)
    if not (train_rows and test_rows and has_dev_pairs and has_columns):
        raise UserError(
            f"{train} and {test} are not MRPC's files, which have five columns, and the "
            f"{len(dev_pairs)} pairs of GLUE's dev set"
        )
    train_header, *train_rows = train_rows
    test_header, *test_rows = test_rows
    new_train_rows = [train_header]
    new_dev_rows = [train_header]
    for cells in train_rows:
        rows = new_dev_rows if id_pair(cells) in dev_pairs else new_train_rows
        rows.append(cells)
    # GLUE's test set has a running number where the corpus has the label.
    new_test_rows = [["index", *test_header[1:]]]
    for number, cells in enumerate(test_rows):
        new_test_rows.append([str(number), *cells[1:]])
    return {
        "train.tsv": as_tsv(new_train_rows),
        "dev.tsv": as_tsv(new_dev_rows),
        "test.tsv": as_tsv(new_test_rows),
    }


def id_pair(cells: list[str]) -> tuple[str, ...]:
    """Return the ids of the two texts in a row of the corpus."""
    return tuple(cells[1:3])


def tsv_cells(path: Path) -> list[list[str]]:
    """Read the cells of each line that is not blank."""
    return [line.rstrip("\r\n").split("\t") for _, line in read_lines(path) if line.strip()]


def as_tsv(rows: list[list[str]]) -> bytes:
    """Format rows as the content of a TSV file."""
    return "".join("\t".join(cells) + "\n" for cells in rows).encode()


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument(
        "--data_dir", type=Path, default="glue_data", help="folder for the task folders"
    )
    parser.add_argument("--tasks", default="all", help="comma-separated names, all, or sample")
    parser.add_argument("--path_to_mrpc", help=f"a folder with {MRPC_TRAIN} and {MRPC_TEST}")
    parser.add_argument("--base_url", default=BASE_URL, help="address of the server or of a mirror")
    args = parser.parse_args()
    check_place(args.data_dir / "sample")
    for folder in chosen_folders(args.tasks):
        if folder == "sample":
            sample_dir = args.data_dir / "sample"
            if not sample_dir.exists():
                shutil.copytree(SAMPLE, sample_dir)
            print(f"{sample_dir}: the bundled sample, a puzzle in RTE's layout")
        else:
            fetch_task(folder, args.data_dir, args.base_url.rstrip("/"), args.path_to_mrpc)


if __name__ == "__main__":
    run_script(main)
