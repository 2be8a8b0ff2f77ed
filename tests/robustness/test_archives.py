"""Archives from a server: a refused or damaged one is removed, and what was there stays."""

import io
import stat
import zipfile
from collections.abc import Callable

import pytest

from glue import download as library
from modeling.errors import UserError
from tests.downloads import RTE_FILES, RTE_PATH, Server, make_zip, tree


def refused(server: Server, fetch: Callable, body: bytes, message: str) -> None:
    server.files[RTE_PATH] = body
    with pytest.raises(UserError, match=message):
        fetch("--tasks", "RTE")


@pytest.mark.parametrize(
    "member",
    ["../outside.tsv", "RTE/../../outside.tsv", "/outside.tsv", "..\\outside.tsv", "C:outside.tsv"],
)
def test_an_archive_that_leads_out_of_data_dir_is_refused(server, fetch, tmp_path, member):
    refused(server, fetch, make_zip(RTE_FILES | {member: "x"}), "refused, .* leads out of")
    assert tree(tmp_path) == []


def test_an_archive_with_a_symbolic_link_is_refused(server, fetch, tmp_path):
    buffer = io.BytesIO(make_zip(RTE_FILES))
    with zipfile.ZipFile(buffer, "a") as archive:
        link = zipfile.ZipInfo("RTE/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc")
    refused(server, fetch, buffer.getvalue(), "'RTE/link' is a symbolic link")
    assert tree(tmp_path) == []


def test_a_zip_bomb_is_refused_by_its_announced_size(server, fetch, tmp_path, monkeypatch):
    monkeypatch.setattr(library, "MAX_UNPACKED_BYTES", 1_000_000)
    bomb = make_zip(RTE_FILES | {"RTE/zeros": "0" * 1_000_000})
    assert len(bomb) < 3_000
    refused(server, fetch, bomb, r"refused, it unpacks to 1000\d\d\d bytes")
    assert tree(tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-30],
        lambda body: b"<html>Sign in to this network</html>",
        # The last data byte of the first stored member: its CRC no longer holds.
        lambda body: body.replace(b"entailment\nPK", b"entailmenT\nPK", 1),
    ],
)
def test_a_damaged_archive_replaces_nothing_and_is_fetched_anew(server, fetch, tmp_path, damage):
    there = tmp_path / "glue/RTE/train.tsv"
    there.parent.mkdir(parents=True)
    there.write_text("mine")
    good = make_zip(RTE_FILES, zipfile.ZIP_STORED)
    assert damage(good) != good
    refused(server, fetch, damage(good), "damaged .* removed; run the same command again")
    assert tree(tmp_path) == ["glue/RTE/train.tsv"]
    assert there.read_text() == "mine"
    server.files[RTE_PATH] = good
    fetch("--tasks", "RTE")
    assert there.read_text() == RTE_FILES["RTE/train.tsv"]


def test_an_archive_without_a_file_of_the_task_is_refused(server, fetch, tmp_path):
    body = make_zip({name: text for name, text in RTE_FILES.items() if "test" not in name})
    refused(server, fetch, body, r"RTE/test\.tsv is not in it")
    assert tree(tmp_path) == []


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_unpack_without_bounds_are_refused(method, server, fetch, tmp_path):
    """A bzip2 of 14 KB that announces 100 bytes and unpacks to 6 GiB would fill the memory."""
    body = make_zip(RTE_FILES | {"RTE/zeros": "0" * 100}, method)
    refused(server, fetch, body, rf"refused, .* compressed by method {method}; allowed")
    assert tree(tmp_path) == []


def test_a_member_longer_than_announced_is_refused(server, fetch, tmp_path):
    """16 MB that the archive's list, and the member's own head, call 100 bytes."""
    size = 2**24
    body = make_zip(RTE_FILES | {"RTE/train.tsv": "0" * size})
    lying = body.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert body.count(size.to_bytes(4, "little")) == 2
    refused(server, fetch, lying, "removed")
    assert tree(tmp_path) == []


def test_bytes_are_counted_as_they_come(server, fetch, tmp_path, monkeypatch):
    """Whatever the archive announces."""
    monkeypatch.setattr(library, "check_members", lambda archive, members: None)
    monkeypatch.setattr(library, "MAX_UNPACKED_BYTES", 100)
    refused(server, fetch, make_zip(RTE_FILES), "refused, it unpacks to .* and more")
    assert tree(tmp_path) == []
