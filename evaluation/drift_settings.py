"""The flags of check_drift.py. Loads no torch."""

from dataclasses import dataclass

from evaluation.table_settings import STREAM
from modeling.errors import UserError
from runs.flags import AT_LEAST_1, Allowed, option

RATE = Allowed(low=1e-6, high=0.5)


@dataclass(frozen=True, kw_only=True)
class DriftSettings:
    """The model, and the texts to compare with its reference."""

    model_dir: str = option(..., "folder of a trained and evaluated model")
    input_file: list[str] = option([], "tables of new texts, which need no labels")
    text_column_names: str | None = option(
        None, "names of the text columns, A or A,B; default: those of the training"
    )
    server: str | None = option(
        None, "address of a server's /metrics, or a file with its content, in place of tables"
    )
    since: str | None = option(
        None, "file with an earlier content of /metrics: only texts answered since then count"
    )
    alarm_rate: float = option(
        0.01, "probability of an alarm where the texts have not changed", RATE
    )
    onnx: str | None = option(None, "ONNX file of the model, which answers in its place")
    batch_size: int = option(32, "number of texts that share a layer pass", AT_LEAST_1)

    def check(self) -> None:
        """Raise UserError unless there are tables or a server to compare."""
        if bool(self.input_file) == bool(self.server):
            raise UserError("give --input_file, tables of new texts, or --server, but not both")
        if STREAM in self.input_file:
            raise UserError("--input_file -: save the texts as a file, whose name tells its format")
        if self.since and not self.server:
            raise UserError("--since belongs to --server")
