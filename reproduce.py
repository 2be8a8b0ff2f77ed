"""Published tables, each by one command: the published value beside the one measured here.

    python reproduce.py --list
    python reproduce.py elbert-rte --weights albert/albert-large-v2
    python reproduce.py --table

--list says what each entry needs, and whether it was run. An entry's commands are shown and run,
from download to table; after an interruption the same command goes on. --table shows the entries
that were run. Flags that are not listed below go to the entry's run_glue.py or run_parity.py, e.g.
--bf16.
"""

from dataclasses import dataclass
from pathlib import Path

from experiments.published import ENTRIES, Request, listing, result_table, results_in, run_entry
from modeling.errors import UserError
from modeling.keys import nearest_names
from training.settings import FlagParser, setting
from utils.files import run_script


@dataclass(frozen=True, kw_only=True)
class ReproductionSettings:
    """What is run, and with what."""

    _argument_group_name = "reproduction"

    weights: str | None = setting(None, "folder or hub name, if not the published weights")
    data_dir: str = setting("glue_data", "holds a folder for each GLUE task; fetched where missing")
    text: str | None = setting(None, "of act-pretraining-*: an English text")
    tasks: list[str] = setting([], "of act-glue: only these")
    output_dir: str = setting("out/reproduce", "holds a folder for each entry")
    table: bool = setting(False, "the entries that were run, published and measured; runs nothing")
    list: bool = setting(False, "what each entry needs, how long it takes, and whether it was run")


def read_settings() -> tuple[ReproductionSettings, str | None, list[str]]:
    """Read the settings, the entry if there is one, and the flags for its scripts."""
    parser = FlagParser(__doc__, (ReproductionSettings,))
    parser.add_argument("entry", nargs="?", help=", ".join(ENTRIES))
    found, flags = parser.parse_known_args()
    values = vars(found)
    entry = values.pop("entry")
    settings = ReproductionSettings(**values)
    if entry is None and not (settings.list or settings.table):
        raise UserError("nothing to do: name an entry, or give --list or --table")
    if entry is not None and entry not in ENTRIES:
        raise UserError(f"{entry}: {nearest_names(entry, [*ENTRIES])}")
    if flags and entry is None:
        raise UserError(f"{flags[0]}: no flag of this script, and no entry to give it to")
    return settings, entry, flags


def main() -> None:
    settings, name, flags = read_settings()
    output = Path(settings.output_dir)
    if settings.list:
        print(listing(output))
    if name:
        request = Request(
            settings.weights or ENTRIES[name]["weights"],
            Path(settings.data_dir),
            Path(settings.text) if settings.text else None,
            output / name,
            settings.tasks,
            flags,
        )
        print(f"\n{result_table(run_entry(name, request))}")
    if settings.table:
        print("\n\n".join(map(result_table, results_in(output).values())))


if __name__ == "__main__":
    run_script(main)
