"""Published tables, each by one command: the published value beside the one measured here.

    python reproduce.py --list
    python reproduce.py elbert-rte --weights albert/albert-large-v2
    python reproduce.py --table

--list says what each entry needs, and whether it was run. An entry's commands are shown and run,
from download to table; after an interruption the same command goes on. --table shows the entries
that were run. Flags that are not listed below go to the entry's run_glue.py or run_parity.py, e.g.
--bf16.
"""

from pathlib import Path

from experiments.published import ENTRIES, listing, result_table, results_in, run_entry
from modeling.errors import UserError
from modeling.keys import nearest_names
from training.settings import FlagParser
from utils.files import run_script


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("entry", nargs="?", help=", ".join(ENTRIES))
    add("--weights", help="folder or hub name, if not the published weights")
    add("--data_dir", default="glue_data", help="holds a folder for each GLUE task")
    add("--text", type=Path, help="of act-pretraining-*: an English text")
    add("--tasks", nargs="+", default=[], help="of act-glue: only these")
    add("--output_dir", default="out/reproduce", help="holds a folder for each entry")
    add("--table", action="store_true", help="the entries that were run; runs nothing")
    add("--list", action="store_true", help="what each entry needs, and whether it was run")
    args, args.flags = parser.parse_known_args()
    name, output = args.entry, Path(args.output_dir)
    if name is None and not (args.list or args.table):
        raise UserError("nothing to do: name an entry, or give --list or --table")
    if name is not None and name not in ENTRIES:
        raise UserError(f"{name}: {nearest_names(name, [*ENTRIES])}")
    if args.flags and name is None:
        raise UserError(f"{args.flags[0]}: no flag of this script, and no entry to give it to")
    if args.list:
        print(listing(output))
    if name:
        args.output = output / name
        print(f"\n{result_table(run_entry(args))}")
    if args.table:
        print("\n\n".join(map(result_table, results_in(output).values())))


if __name__ == "__main__":
    run_script(main)
