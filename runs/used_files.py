"""The files that a result is computed from, watched until it is written. Loads no torch."""

from collections.abc import Iterator
from pathlib import Path

from elbert_base.errors import UserError
from elbert_base.exit_settings import EXIT_FILE
from elbert_base.files import (
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
            `elbert_base.files.model_hashes`.
    """

    def __init__(self, model_dir: str | Path, *data: str | Path) -> None:
        """Hash the files.

        data: files, or folders, which stand for all files in them.

        Raises UserError where the folder of the model holds no weights.
        """
        self.model_dir = Path(model_dir)
        self.data = [Path(path) for path in data]
        self.hashes = self.hash_files()
        weight_files(model_dir)  # raises where there are none
        self.model_hashes = model_hashes(model_dir)

    def check(self) -> None:
        """Raise UserError for a file that was changed, made or removed since."""
        hashes_now = self.hash_files()
        for path in [*self.hashes, *hashes_now]:
            if self.hashes.get(path) != hashes_now.get(path):
                raise UserError(
                    f"{path} was changed while this command used it, so nothing was written; give "
                    "the command again when that has ended"
                )

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


def rule_files(model_dir: Path) -> list[Path]:
    """List the files that a model's exit keys may stand in, there or not.

    They are config.json, exit_config.json, and the file that the key exit_config_path names, which
    may be in a folder of this name.
    """
    config_file = model_dir / "config.json"
    files = [config_file, model_dir / EXIT_FILE]
    name = read_json(config_file).get("exit_config_path") if config_file.is_file() else None
    if isinstance(name, str):
        for stated_name in (name, f"{name}/{EXIT_FILE}"):
            path = resolve_within(model_dir, stated_name)
            if path:
                files.append(path)
    return files
