"""The files that a result is computed from, watched until it is written. Loads no torch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from modeling.errors import UserError
from modeling.exit_settings import EXIT_FILE, is_trained_here
from modeling.files import (
    TOKENIZER_FILES,
    WEIGHT_FILES,
    file_hash,
    has_weights,
    model_hashes,
    read_json,
    resolve_within,
    weight_files,
)


class UsedFiles:
    """What a result is computed from: a model's weights, tokenizer and configuration, and data.

    They are hashed before they are read and again before the result is written: a result must not
    stand beside a model or data that another process has changed in between.

        used = UsedFiles(model_dir, dev_file)
        model = load_model(model_dir)
        ...
        used.check()
        results.write_json(...)

    Attributes:
        model_hashes: SHA-256 of the weights, the tokenizer and the configuration; see
            `modeling.files.model_hashes`.
    """

    def __init__(
        self, model_dir: str | Path, *data: str | Path, needs_weights: bool = True
    ) -> None:
        """Hash the files.

        Args:
            data: files, or folders, which stand for all files in them.
            needs_weights: whether the result is computed from weights: an ONNX file has its own.

        Raises:
            UserError: the folder of the model holds no weights, and they are needed.
        """
        self.model_dir = Path(model_dir)
        self.data = [Path(path) for path in data]
        self.hashes = self.hash_files()
        if needs_weights:
            weight_files(model_dir)  # raises where there are none
        self.model_hashes = model_hashes(model_dir)

    def check(self) -> None:
        """Raise UserError for a file that was changed, made or removed since."""
        hashes_now = self.hash_files()
        for path in [*self.hashes, *hashes_now]:
            if self.hashes.get(path) != hashes_now.get(path):
                raise UserError(changed_message(path))

    def hash_files(self) -> dict[Path, str]:
        """Hash each file that is there."""
        return {path: file_hash(path) for path in self.files() if path.is_file()}

    def files(self) -> Iterator[Path]:
        """Yield all that may be there: a file that is made later would change a result as well."""
        for name in (*WEIGHT_FILES, *TOKENIZER_FILES):
            yield self.model_dir / name
        if has_weights(self.model_dir):
            yield from weight_files(self.model_dir)  # shards as well
        yield from rule_files(self.model_dir)
        for path in self.data:
            if path.is_dir():
                yield from path.rglob("*")
            else:
                yield path


class TablesRead:
    """Tables that are read for hours, while another process may change them.

    They are hashed before. `check_times` is quick enough for every part of the work, and
    `changed_file` reads them once more. What counts is the content: a file that was only touched
    is not changed.

    Attributes:
        hashes: SHA-256 of each file.

    Raises:
        UserError: a file cannot be read.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        # Before the hashes: whatever is written meanwhile has another time.
        self.times = {path: change_time(path) for path in paths}
        self.hashes = {path: file_hash(path) for path in paths}

    def check_times(self) -> None:
        """Raise UserError for a file that is gone, or whose time and content are others."""
        for path, time in self.times.items():
            now = change_time(path)
            if now == time:
                continue
            if now is None or file_hash(path) != self.hashes[path]:
                raise UserError(changed_message(path, "changed" if now else "removed"))
            self.times[path] = now

    def changed_file(self) -> Path | None:
        """Return a file whose content is not as before, whatever its time says; None for none."""
        for path, sha256 in self.hashes.items():
            if not path.is_file() or file_hash(path) != sha256:
                return path
        return None


def change_time(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written: its number, size and time; None for no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def changed_message(path: Path, change: str = "changed") -> str:
    """Say that a file was changed, or removed."""
    return (
        f"{path} was {change} while this command used it, so nothing was written; give the command "
        "again when that has ended"
    )


def rule_files(model_dir: Path) -> list[Path]:
    """List the files that a model's exit keys may stand in, there or not.

    They are config.json, exit_config.json, and the file that the key exit_config_path names, which
    may be in a folder of this name. Where a training wrote the folder, that file may be anywhere.
    """
    config_file = model_dir / "config.json"
    files = [config_file, model_dir / EXIT_FILE]
    name = read_json(config_file).get("exit_config_path") if config_file.is_file() else None
    if isinstance(name, str):
        for stated_name in (name, f"{name}/{EXIT_FILE}"):
            path = resolve_within(model_dir, stated_name)
            if path is None and is_trained_here(model_dir):
                path = model_dir / stated_name
            if path:
                files.append(path)
    return files
