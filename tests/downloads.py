"""A server of GLUE's files on this machine, and the files."""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

RTE_PATH = "/glue/data/RTE.zip"


class Server(ThreadingHTTPServer):
    """Serves `files`, as far as `breaks_off_after` bytes of each."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.breaks_off_after: int | None = None
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        body = self.server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.breaks_off_after])

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def tsv(*rows: str, labelled: bool = True) -> str:
    header = ["index", "sentence1", "sentence2"] + ["label"] * labelled
    return "\n".join(["\t".join(header), *rows]) + "\n"


RTE_FILES = {
    "RTE/train.tsv": tsv("0\ta\tb\tentailment"),
    "RTE/dev.tsv": tsv("0\tc\td\tnot_entailment"),
    "RTE/test.tsv": tsv("0\te\tf", labelled=False),
}


def make_zip(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def tree(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
