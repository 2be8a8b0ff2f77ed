"""Fetch GLUE in the layout that run_glue.py reads, or write the bundled sample task.

    python download_glue_data.py --data_dir glue_data --tasks all
    python download_glue_data.py --data_dir glue_data --tasks RTE,MNLI,diagnostic
    python download_glue_data.py --data_dir glue_data --tasks sample
    python download_glue_data.py --tasks MRPC --path_to_mrpc ~/MSRParaphraseCorpus
    python download_glue_data.py --tasks all --base_url https://mirror.example/glue

Each task gets a folder, glue_data/RTE and so on, with its .tsv files (MRPC's also keeps the three
files that these are made from). A task is not fetched again if its files are there and its test
file is as long as GLUE's. Otherwise its files are fetched, and existing files of the same names,
except the sample's, are renamed to train.tsv.1 and so on.

A mirror given as --base_url must hold the same files, with the same SHA-256, in the folders
glue/data and senteval/senteval_data.
"""

import socket
import sys
import zipfile
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from glue.tables import read_lines
from glue.tasks import TASKS, get_task
from modeling.errors import UserError
from utils.files import put_aside, write_file, write_text
from utils.flags import FlagParser
from utils.processes import run_script

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


def is_complete(target: Path) -> bool:
    """Tell whether GLUE's own files are there, whose test files have known sizes."""
    tests = {t.files["test"]: t.test_lines for t in TASKS.values() if t.folder == target.name}
    try:
        whole = all(sum(1 for _ in read_lines(target / n)) == lines for n, lines in tests.items())
    except UserError:
        return False  # not a file that GLUE has
    return whole and all((target / name).exists() for name in task_files(target.name))


def fetch_file(name: str, target: Path, base_url: str) -> None:
    """Fetch a file of SHA256; `target` stays until all has come and the hash is right."""
    from torch.hub import download_url_to_file  # takes seconds to import

    socket.setdefaulttimeout(60)  # seconds without a byte
    folder = "senteval/senteval_data" if name in (TRAIN, TEST) else "glue/data"
    url = f"{base_url}/{folder}/{name}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(url, str(target), SHA256[name], progress=sys.stderr.isatty())
    except (OSError, HTTPException, ValueError, RuntimeError) as error:
        raise UserError(
            f"cannot fetch {url} to {target}: {error}; check the connection and the disk and run "
            "the same command again, or with a mirror of the same files as --base_url"
        ) from error


def fetch_mrpc(target: Path, base_url: str, path_to_mrpc: str | None) -> None:
    """Make MRPC's files of its three sources, fetching those that are missing."""
    own = Path(path_to_mrpc or target).expanduser()
    paths = {name: own / name for name in (TRAIN, TEST, DEV_IDS)}
    if not paths[DEV_IDS].exists():
        paths[DEV_IDS] = target / DEV_IDS
    for name, path in paths.items():
        if path_to_mrpc and path.parent != target and not path.exists():
            raise UserError(f"no {name} in {own}, which --path_to_mrpc names")
        if not path.exists():
            fetch_file(name, path, base_url)
    assemble_mrpc(*paths.values(), target)


def assemble_mrpc(train: Path, test: Path, dev_ids: Path, target: Path) -> None:
    """Split MRPC's corpus, which GLUE may not host, into GLUE's files; test.tsv has no labels."""
    wanted = {tuple(cells) for cells in tsv_cells(dev_ids, 2)}
    pairs, (head, *tests) = tsv_cells(train, 5), tsv_cells(test, 5)
    is_dev = [tuple(cells[1:3]) in wanted for cells in pairs]
    files = {
        "train.tsv": [cells for cells, dev in zip(pairs, is_dev, strict=True) if not dev],
        "dev.tsv": [pairs[0], *(cells for cells, dev in zip(pairs, is_dev, strict=True) if dev)],
        "test.tsv": [["index", *head[1:]], *([str(i), *x[1:]] for i, x in enumerate(tests))],
    }
    if len({tuple(cells[1:3]) for cells in files["dev.tsv"][1:]}) < len(wanted):
        raise UserError(
            f"some of the {len(wanted)} dev pairs of {dev_ids} are not in {train}; remove both "
            "and run the same command again"
        )
    for name, rows in files.items():
        save(target / name, "".join("\t".join(cells) + "\n" for cells in rows).encode())


def save(path: Path, content: bytes) -> None:
    """Write a task's file; put another aside that stands there, unless it is the sample's."""
    samples = (sample.read_bytes() for sample in SAMPLE.glob(path.name))
    if path.is_file() and path.read_bytes() not in (content, *samples):
        put_aside(path, "is not GLUE's")
    write_file(path, lambda file: file.write(content))


def tsv_cells(path: Path, width: int) -> list[list[str]]:
    found = []
    for number, line in read_lines(path):
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) != width and cells != [""]:
            raise UserError(
                f"{path}, line {number}: {len(cells)} columns where {width} belong; "
                "remove the file and fetch it again"
            )
        found += [cells] if len(cells) == width else []
    if not found:
        raise UserError(f"{path} is empty")
    return found


def write_sample(target: Path) -> None:
    names = task_files("RTE")
    for path in filter(Path.exists, (target / name for name in names)):
        if path.read_bytes() != (SAMPLE / path.name).read_bytes():
            raise UserError(f"{path} is not the sample's; pass another --data_dir to keep both")
    for name in names:
        write_text(target / name, (SAMPLE / name).read_text("utf-8"))
    print(f"{target} now has the bundled sample, made in RTE's layout; it is not GLUE's RTE")


def fetch(folder: str, data_dir: Path, base_url: str, path_to_mrpc: str | None) -> None:
    target = data_dir / folder
    if is_complete(target):
        print(f"{folder}: already in {target}")
        return
    if folder == "MRPC":
        fetch_mrpc(target, base_url, path_to_mrpc)
    else:
        with TemporaryDirectory() as scratch:
            fetched = Path(scratch, OTHER_NAMES.get(folder, f"{folder}.zip"))
            fetch_file(fetched.name, fetched, base_url)
            if folder == "diagnostic":
                save(target / "diagnostic.tsv", fetched.read_bytes())
            else:
                with zipfile.ZipFile(fetched) as archive:
                    for name in task_files(folder):
                        save(target / name, archive.read(f"{folder}/{name}"))
    print(f"{folder}: {', '.join(task_files(folder))} in {target}")


def chosen_folders(tasks: str) -> list[str]:
    """List the folders of a comma-separated list, each once; "sample" stands for itself."""
    groups, folders = {"all": FOLDERS, "sample": ["sample"]}, []
    for name in filter(None, map(str.strip, tasks.split(","))):
        try:
            folders += groups.get(name.lower()) or [get_task(name).folder]
        except UserError as error:
            raise UserError(f"--tasks: {error}, and: all, sample") from error
    if not folders:
        raise UserError("--tasks is empty; name tasks, all or sample")
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
            write_sample(args.data_dir / "RTE")
        else:
            fetch(folder, args.data_dir, args.base_url.rstrip("/"), args.path_to_mrpc)


if __name__ == "__main__":
    run_script(main)
