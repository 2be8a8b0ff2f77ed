"""download_glue_data.py, against a server on this machine with files made here."""

import hashlib
import io
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import download_glue_data
from download_glue_data import FOLDERS, assemble_mrpc, chosen_folders
from glue.splits import read_examples
from glue.tasks import get_task
from tests.commands import served
from tests.conftest import contents, write

GLUE = Path(os.environ.get("GLUE_DATA") or Path(__file__).parents[3] / "shared" / "glue_data")
HEADER = "index\tsentence1\tsentence2"
RTE_FILES = {
    "RTE/train.tsv": f"{HEADER}\tlabel\n0\ta\tb\tentailment\n",
    "RTE/dev.tsv": f"{HEADER}\tlabel\n0\tc\td\tnot_entailment\n",
    "RTE/test.tsv": f"{HEADER}\n0\te\tf\n",
}


def make_zip(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def write_all(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, content)
    return folder


@pytest.fixture
def server(tmp_path):
    """A web server's folder and address, and what was asked for."""
    with served(tmp_path / "served") as (url, requests):
        yield SimpleNamespace(folder=tmp_path / "served", url=url, requests=requests)


@pytest.fixture
def fetch(script, server, tmp_path, monkeypatch):
    """`fetch("RTE", "--flag", value, ...)` fetches into tmp_path/glue from `server`, whose files it
    takes for GLUE's."""

    def run(tasks: str, *more, known: bool = True):
        for path in filter(Path.is_file, server.folder.rglob("*") if known else ()):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            monkeypatch.setitem(download_glue_data.SHA256, path.name, digest)
        where = ("--data_dir", tmp_path / "glue", "--base_url", server.url)
        return script(download_glue_data.main, *where, "--tasks", tasks, *more)

    return run


def test_a_task_is_fetched_unpacked_and_readable(server, fetch, tmp_path):
    extra = {"__MACOSX/RTE/._train.tsv": "x", "RTE/original/big.jsonl": "{}", "../outside.tsv": ""}
    write_all(server.folder, {"glue/data/RTE.zip": make_zip(RTE_FILES | extra)})
    fetch("rte").done()
    found = {name: text.encode() for name, text in RTE_FILES.items()}
    assert contents(tmp_path / "glue") == found
    assert len(read_examples(get_task("rte"), tmp_path / "glue/RTE", "train")) == 1
    write_all(server.folder, {"glue/data/AX.tsv": RTE_FILES["RTE/test.tsv"]})
    fetch("diagnostic").done()
    assert len(read_examples(get_task("ax"), tmp_path / "glue/diagnostic", "test")) == 1


def test_a_file_that_is_not_the_known_one_is_not_written(server, fetch, tmp_path):
    write_all(server.folder, {"glue/data/AX.tsv": b"cut short"})
    fetch("diagnostic", known=False).refused("invalid hash value", "give the same command again")
    assert not (tmp_path / "glue").exists()


def test_network_and_disk_failures_say_what_to_do(server, fetch):
    fetch("RTE").refused("RTE.zip", "404", "--base_url")
    fetch("RTE", "--base_url", "ftp.example").refused("unknown url type")
    write_all(server.folder, {"glue/data/RTE.zip": make_zip(RTE_FILES)})
    fetch("RTE", "--data_dir", "/dev/null/x").refused("cannot write /dev/null/x/")
    fetch("RTE", "--base_url", "http://127.0.0.1:1").refused("cannot fetch", "refused")


def test_files_that_are_there_stay_and_are_not_fetched_again(server, fetch, tmp_path):
    write_all(server.folder, {"glue/data/RTE.zip": make_zip(RTE_FILES)})
    write_all(tmp_path / "glue", {"RTE/dev.tsv": "mine"})
    fetch("RTE").done()
    assert contents(tmp_path / "glue")["RTE/dev.tsv"] == b"mine"
    assert f"RTE: already in {tmp_path / 'glue/RTE'}" in fetch("rte,RTE").done().out
    assert len(server.requests) == 1


def test_task_lists_take_every_spelling_and_name_each_once():
    assert chosen_folders("SST, sts-b,diagnostic,sst2") == ["SST-2", "STS-B", "diagnostic"]
    assert chosen_folders("mnli,MNLI-mm,sample") == ["MNLI", "sample"]
    published = "CoLA SST-2 MRPC QQP STS-B MNLI QNLI RTE WNLI diagnostic"
    assert sorted(chosen_folders("all")) == sorted(FOLDERS) == sorted(published.split())


# MRPC.

MRPC_HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
MRPC_SOURCES = {
    "msr_paraphrase_train.txt": MRPC_HEADER + "1\t11\t12\ta\tb\r\n0\t13\t14\tc\td\r\n",
    "msr_paraphrase_test.txt": MRPC_HEADER + "1\t21\t22\te\tf\r\n0\t23\t24\tg\th\r\n",
    "mrpc_dev_ids.tsv": "13\t14\n",
}
COLUMNS = "#1 ID\t#2 ID\t#1 String\t#2 String\n"
MRPC_FILES = {
    "train.tsv": f"Quality\t{COLUMNS}1\t11\t12\ta\tb\n",
    "dev.tsv": f"Quality\t{COLUMNS}0\t13\t14\tc\td\n",
    "test.tsv": f"index\t{COLUMNS}0\t21\t22\te\tf\n1\t23\t24\tg\th\n",
}


@pytest.mark.parametrize("local", [False, True])
def test_mrpc_is_assembled_from_its_sources(local, server, fetch, tmp_path):
    for name, text in MRPC_SOURCES.items():
        folder = "glue/data" if "ids" in name else "senteval/senteval_data"
        write_all(server.folder, {f"{folder}/{name}": text})
        write_all(tmp_path / "mine", {name: text} if "ids" not in name else {})
    fetch("MRPC", *(("--path_to_mrpc", tmp_path / "mine") if local else ())).done()
    assert len(server.requests) == (1 if local else 3)
    for name, text in MRPC_FILES.items():
        assert (tmp_path / "glue/MRPC" / name).read_bytes().decode() == text


def test_a_bad_mrpc_corpus_writes_nothing(server, fetch, tmp_path):
    write_all(server.folder, {"glue/data/mrpc_dev_ids.tsv": MRPC_SOURCES["mrpc_dev_ids.tsv"]})
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"):
        mine = write_all(tmp_path / "mine", MRPC_SOURCES | {name: MRPC_HEADER + "1\t2\n"})
        fetch("MRPC", "--path_to_mrpc", mine).refused(f"{mine / name}", "are not MRPC's files")
    fetch("MRPC", "--path_to_mrpc", "\x1b[31m").refused("no msr_paraphrase_train.txt in ?[31m")
    assert not (tmp_path / "glue").exists()


@pytest.mark.realdata
@pytest.mark.skipif(not (GLUE / "MRPC").is_dir(), reason="no GLUE data")
def test_the_real_mrpc_is_assembled_to_the_published_files(tmp_path):
    files = {name: (GLUE / "MRPC" / name).read_bytes() for name in MRPC_FILES}
    train, dev, test = (files[name].splitlines(keepends=True) for name in MRPC_FILES)
    (tmp_path / "train.txt").write_bytes(b"".join([train[0], *dev[1:], *train[1:]]))
    unlabelled = [b"0\t" + row.split(b"\t", 1)[1] for row in test]
    (tmp_path / "test.txt").write_bytes(b"".join(unlabelled))
    ids = [b"\t".join(row.split(b"\t")[1:3]) + b"\n" for row in dev[1:]]
    (tmp_path / "ids").write_bytes(b"".join(ids))
    sources = (tmp_path / name for name in ("train.txt", "test.txt", "ids"))
    made = assemble_mrpc(*sources)
    for name, content in files.items():
        assert made[name] == content.removeprefix(b"\xef\xbb\xbf").rstrip(b"\n") + b"\n"


def test_the_sample_is_written_beside_the_tasks(server, fetch, tmp_path):
    done = fetch("sample").done()
    assert "the bundled sample, a puzzle in RTE's layout" in done.out
    assert len(read_examples(get_task("rte"), tmp_path / "glue/sample", "train")) > 100
    assert server.requests == []
