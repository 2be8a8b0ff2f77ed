"""Claims on download_glue_data.py, against a server on this machine with files made here."""

import hashlib
import os
from pathlib import Path

import pytest

import download_glue_data
from download_glue_data import FOLDERS, chosen_folders, is_complete
from glue.download import assemble_mrpc, download
from glue.tasks import get_task, read_examples
from modeling.errors import UserError
from tests.downloads import RTE_FILES, RTE_PATH, Server, make_zip, tree, tsv

GLUE = Path(os.environ.get("GLUE_DATA") or Path(__file__).parents[3] / "shared" / "glue_data")


# Downloads.


def test_a_task_is_fetched_unpacked_and_readable(server, fetch):
    extra = {"__MACOSX/RTE/._train.tsv": "x", "RTE/original/big.jsonl": "{}", "../outside.tsv": ""}
    server.files[RTE_PATH] = make_zip(RTE_FILES | extra)
    data_dir = fetch("--tasks", "rte")
    assert tree(data_dir.parent) == [f"glue/RTE/{name}.tsv" for name in ("dev", "test", "train")]
    for split in ("train", "dev", "test"):
        assert (data_dir / f"RTE/{split}.tsv").read_text() == RTE_FILES[f"RTE/{split}.tsv"]
        assert len(read_examples(get_task("rte"), data_dir / "RTE", split)) == 1


@pytest.mark.parametrize("breaks_off_after", [1000, None])
def test_a_file_that_is_not_the_known_one_replaces_nothing(server, tmp_path, breaks_off_after):
    body, target = bytes(range(256)) * 10, tmp_path / "f"
    server.files["/f"], server.breaks_off_after = body, breaks_off_after
    known = hashlib.sha256(body if breaks_off_after else b"another").hexdigest()
    target.write_text("mine")
    with pytest.raises(UserError, match=r"invalid hash value .*run the same command again"):
        download(f"{server.url}/f", target, known)
    assert tree(tmp_path) == ["f"]
    assert target.read_text() == "mine"
    server.breaks_off_after = None
    download(f"{server.url}/f", target, hashlib.sha256(body).hexdigest())
    assert target.read_bytes() == body


def test_network_failures_say_what_to_do(server, fetch, tmp_path):
    with pytest.raises(UserError, match=r"RTE\.zip: the server answered 404 .*--base_url"):
        fetch("--tasks", "RTE")
    with Server() as closed:
        pass
    with pytest.raises(UserError, match=r"cannot fetch .*refused.*--base_url"):
        download(f"{closed.url}/f", tmp_path / "f", "")
    with pytest.raises(UserError, match="does not start with http"):
        fetch("--tasks", "RTE", "--base_url", "ftp.example")


def test_a_data_dir_that_cannot_be_written_is_an_error(server, fetch):
    server.files[RTE_PATH] = make_zip(RTE_FILES)
    with pytest.raises(UserError, match=r"cannot write /dev/null/x/RTE/"):
        fetch("--tasks", "RTE", "--data_dir", "/dev/null/x")


# Tasks.


def test_a_complete_task_is_not_fetched_again(server, fetch, capsys):
    rows = tsv(*[f"{i}\ta\tb" for i in range(146)], labelled=False)  # WNLI's 146 test pairs
    files = {"WNLI/train.tsv": tsv(), "WNLI/dev.tsv": tsv(), "WNLI/test.tsv": rows}
    server.files["/glue/data/WNLI.zip"] = make_zip(files)
    data_dir = fetch("--tasks", "WNLI")
    assert is_complete(data_dir / "WNLI")
    fetch("--tasks", "wnli,WNLI")
    assert len(server.requests) == 1
    assert f"WNLI: already in {data_dir / 'WNLI'}" in capsys.readouterr().out


def test_task_lists_take_every_spelling_and_name_each_once():
    assert chosen_folders("SST, sts-b,diagnostic,sst2") == ["SST-2", "STS-B", "diagnostic"]
    assert chosen_folders("mnli,MNLI-mm,sample") == ["MNLI", "sample"]
    assert chosen_folders("all") == FOLDERS
    published = "CoLA SST-2 MRPC QQP STS-B MNLI QNLI RTE WNLI diagnostic"
    assert sorted(FOLDERS) == sorted(published.split())
    with pytest.raises(UserError, match=r"unknown task 'SNLI'.*and: all, sample"):
        chosen_folders("SNLI")


def test_the_diagnostic_lands_where_mnli_finds_it(server, fetch):
    server.files["/glue/data/AX.tsv"] = tsv("0\ta\tb", labelled=False).encode()
    data_dir = fetch("--tasks", "diagnostic")
    assert tree(data_dir) == ["diagnostic/diagnostic.tsv"]
    assert len(read_examples(get_task("ax"), data_dir / "diagnostic", "test")) == 1


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


def test_mrpc_is_assembled_from_its_sources(server, fetch):
    for name, text in MRPC_SOURCES.items():
        folder = "glue/data" if "ids" in name else "senteval/senteval_data"
        server.files[f"/{folder}/{name}"] = text.encode()
    data_dir = fetch("--tasks", "MRPC")
    assert tree(data_dir / "MRPC") == sorted([*MRPC_FILES, *MRPC_SOURCES])
    for name, text in MRPC_FILES.items():
        assert (data_dir / "MRPC" / name).read_bytes().decode() == text


def test_mrpc_from_a_folder_needs_the_server_for_the_dev_ids_only(server, fetch, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(UserError, match=r"no msr_paraphrase_train\.txt in .*mine"):
        fetch("--tasks", "MRPC", "--path_to_mrpc", str(mine))
    for name, text in MRPC_SOURCES.items():
        (mine / name).write_bytes(text.encode())
    (mine / "mrpc_dev_ids.tsv").rename(tmp_path / "ids")
    server.files["/glue/data/mrpc_dev_ids.tsv"] = (tmp_path / "ids").read_bytes()
    data_dir = fetch("--tasks", "MRPC", "--path_to_mrpc", str(mine))
    assert server.requests == ["/glue/data/mrpc_dev_ids.tsv"]
    assert (data_dir / "MRPC/dev.tsv").read_text() == MRPC_FILES["dev.tsv"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mrpc_dev_ids.tsv", "13\t14\n98\t99\n", "1 of the 2 dev pairs .* are not in"),
        ("mrpc_dev_ids.tsv", "", r"mrpc_dev_ids\.tsv is empty"),
        ("msr_paraphrase_test.txt", MRPC_HEADER + "1\t2\n", "line 2: 2 columns where 5 belong"),
    ],
)
def test_bad_mrpc_sources_write_nothing(fetch, tmp_path, name, content, message):
    mine = tmp_path / "mine"
    mine.mkdir()
    for source, text in (MRPC_SOURCES | {name: content}).items():
        (mine / source).write_bytes(text.encode())
    with pytest.raises(UserError, match=message):
        fetch("--tasks", "MRPC", "--path_to_mrpc", str(mine))
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
    assemble_mrpc(*sources, tmp_path / "out")
    for name, content in files.items():
        written = (tmp_path / "out" / name).read_bytes()
        assert written == content.removeprefix(b"\xef\xbb\xbf").rstrip(b"\n") + b"\n"


# The bundled sample.


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bundled"
    folder.mkdir()
    for name, text in RTE_FILES.items():
        (folder / Path(name).name).write_text(text)
    monkeypatch.setattr(download_glue_data, "SAMPLE", folder)
    return folder


@pytest.mark.usefixtures("sample")
def test_the_sample_is_written_without_the_network_and_said_to_be_one(server, fetch, capsys):
    data_dir = fetch("--tasks", "sample")
    fetch("--tasks", "sample")
    assert server.requests == []
    assert (data_dir / "RTE/dev.tsv").read_text() == RTE_FILES["RTE/dev.tsv"]
    assert "bundled sample, made in RTE's layout; it is not GLUE's RTE" in capsys.readouterr().out


@pytest.mark.usefixtures("sample")
def test_the_sample_never_replaces_other_data_but_rte_replaces_the_sample(server, fetch):
    real = {name: text + "1\tx\ty\tentailment\n" for name, text in RTE_FILES.items()}
    server.files[RTE_PATH] = make_zip(real)
    data_dir = fetch("--tasks", "sample,RTE")
    before = {name: (data_dir / name).read_text() for name in real}
    assert before == real
    with pytest.raises(UserError, match=r"RTE/\w+\.tsv is not the sample's; .*another --data_dir"):
        fetch("--tasks", "sample")
    assert {name: (data_dir / name).read_text() for name in real} == before
