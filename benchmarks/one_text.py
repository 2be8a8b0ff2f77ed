"""Milliseconds of one text at a time: a model with exits beside fixed-depth models of fewer layers.

    OMP_NUM_THREADS=2 python benchmarks/one_text.py --model_dir out/film_reviews/model \\
      --encoder sentence-transformers/all-MiniLM-L6-v2 --table new.csv \\
      --csv docs/milliseconds.csv --chart docs/milliseconds.png

A fixed-depth model of k layers is timed as the model's own first k layers and one classifier,
without any exit check: with other weights it would take as long. Its int8 file is made by ONNX
Runtime's own tool. The exits follow the model's rule, at the value of its key (exit_price of
optimal stopping, exit_thres of others) whose mean share of layers, on all rows of the table in
float32, is nearest to each of --costs; the accuracy there is printed as well.
Hugging Face's model has all layers of --encoder and a random head; its threads wait as they do by
default, and in a row of its own as ours do. All contenders take the same texts as token ids, one at
a time, in turn, round after round, each in a process of its own. A text's time is its median over
the rounds; mean and 95th percentile are over texts. Needs requirements/bench.txt.
"""

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.contenders import HAS_BF16, MOST_SPREAD, processor_flags, spread
from benchmarks.runtimes import in_onnxruntime, write_plain
from elbert import Classifier
from elbert.onnx_file import open_session
from glue.tables import as_csv, read_records
from modeling import ElbertForSequenceClassification, load_pretrained
from modeling.cpu_packing import cast_layers, packed_copy
from modeling.depth import layer_states
from modeling.errors import UserError
from modeling.runtime import environment, keep_freed_memory
from runs.console import markdown_table
from runs.flags import FlagParser
from runs.processes import run_script

Answer = Callable[[list[int]], object]  # to one text's token ids
Place = dict[str, Any]  # in a contender's process: what answers
FORMS = {"fp32": "PyTorch", "bf16": "PyTorch, bf16", "onnx": "ONNX", "int8": "ONNX, int8"}
HUGGING_FACE = "Hugging Face's, all layers"
HUGGING_FACE_TUNED = "Hugging Face's, our thread settings"
REST = 0.1  # seconds between runs: threads that wait awake for more work fall asleep
PLACE: Place = {}


class Contender(NamedTuple):
    """A row of the table, in one form."""

    name: str
    form: str
    make: Callable[[], Answer]


def load_ours(folder: Path, form: str) -> ElbertForSequenceClassification:
    model, _ = load_pretrained(folder)
    cast_layers(model, torch.bfloat16 if form == "bf16" else torch.float32)
    return packed_copy(model.eval())


def first_layers(folder: Path, form: str, layers: int) -> Answer:
    """Answer after `layers` layers, without exit checks before."""
    model = load_ours(folder, form)

    @torch.inference_mode()
    def answer(ids: list[int]) -> list[int]:
        hidden = model.embed(torch.tensor([ids]), None, None, None)
        *_, hidden = itertools.islice(layer_states(model, hidden, None), layers)
        weights = model.layer_weights(layers - 1)
        state = model.start(model.exit_rule(), 1, {})
        seen, _ = model.layer_output(hidden, None, weights, state)
        return seen.logits.argmax(-1).tolist()

    return answer


def with_exits(folder: Path, form: str, setting: Mapping[str, float]) -> Answer:
    """Answer as the model does with a setting of its exit rule."""
    model = load_ours(folder, form)
    model.config.update(setting)

    @torch.inference_mode()
    def answer(ids: list[int]) -> list[int]:
        return model.exit_early(torch.tensor([ids])).logits.argmax(-1).tolist()

    return answer


def hugging_face(encoder: str, form: str) -> Answer:
    """Answer as transformers' model does."""
    from transformers import AutoModelForSequenceClassification

    dtype = torch.bfloat16 if form == "bf16" else torch.float32
    model = AutoModelForSequenceClassification.from_pretrained(encoder, dtype=dtype).eval()

    @torch.inference_mode()
    def answer(ids: list[int]) -> list[int]:
        return model(torch.tensor([ids])).logits.argmax(-1).tolist()

    return answer


def in_file(path: Path, plain: bool, settings: Mapping[str, float]) -> Answer:
    """Answer with an ONNX file; plain: without a loop."""
    run = in_onnxruntime(path) if plain else open_session(str(path)).run
    given = {name: np.array(value, np.float32) for name, value in settings.items()}

    def answer(ids: list[int]) -> list[int]:
        row = np.array([ids])
        feed = {"input_ids": row, "attention_mask": np.ones_like(row)}
        feed |= {"token_type_ids": np.zeros_like(row), **given}
        return run(["logits"], feed)[0].argmax(-1).tolist()

    return answer


def prepare(make: Callable[[], Answer]) -> None:
    keep_freed_memory()
    PLACE["answer"] = make()


def time_each(texts: list[list[int]]) -> list[float]:
    """Answer the texts; return the seconds of each."""
    answer: Answer = PLACE["answer"]
    answer(texts[0])  # as in the middle of its work
    seconds = []
    for ids in texts:
        started = time.perf_counter()
        answer(ids)
        seconds.append(time.perf_counter() - started)
    return seconds


class Trial(NamedTuple):
    """What the model does on a table with a setting of its exit rule."""

    setting: dict[str, float]
    share_of_layers: float  # that run, mean of the texts
    accuracy: float


def settings_of(config: Any) -> list[dict[str, float]]:
    """List what the exit rule's key may be: fitted prices, or the values that a sweep tries."""
    keys = config.keys_read()
    if "exit_price" in keys:
        return [{"exit_price": price} for price, *_ in config.stopping_thresholds]
    if "exit_thres" not in keys:
        read = ", ".join(keys)
        raise UserError(f"the exit rule reads {read}; --costs need exit_price or exit_thres")
    return [{"exit_thres": value} for value in config.grid("exit_thres")]


def try_settings(
    classifier: Classifier, texts: Sequence[str], labels: Sequence[str]
) -> list[Trial]:
    """Answer the texts with every setting of the exit rule."""
    config: Any = classifier.model.config
    found = []
    for setting in settings_of(config):
        config.update(setting)
        answers = classifier(list(texts))
        depth = np.mean([answer["exit_layer"] for answer in answers])
        right = [answer["label"] == label for answer, label in zip(answers, labels, strict=True)]
        share = float(depth) / config.num_hidden_layers
        found.append(Trial(setting, share, float(np.mean(right))))
    return found


def evenly_spaced(classifier: Classifier, texts: Sequence[str], count: int) -> list[list[int]]:
    """Tokenise `count` of the texts; raises UserError for one that the model cannot read whole."""
    longest = classifier.config.max_position_embeddings
    tokenised = []
    for place in np.linspace(0, len(texts) - 1, count).astype(int):
        ids = classifier.tokenizer(texts[place])["input_ids"]
        if len(ids) > longest:
            raise UserError(f"text {place} of the table has more than {longest} tokens")
        tokenised.append(ids)
    return tokenised


def contenders_of(
    args: Any, settings: Mapping[float, dict[str, float]], files: Path
) -> list[Contender]:
    """List all contenders: every row in every form; settings: of the exit rule, by cost."""
    folder = args.model_dir
    rows = []
    for form in args.forms:
        if form == "bf16" and not HAS_BF16:
            continue
        is_file = form in ("onnx", "int8")
        if not is_file:
            make = partial(hugging_face, args.encoder, form)
            rows.append(Contender(HUGGING_FACE, form, make))
            rows.append(Contender(HUGGING_FACE_TUNED, form, make))
        for layers in args.layers:
            make = partial(first_layers, folder, form, layers)
            if is_file:
                make = partial(in_file, files / f"plain-{layers}-{form}.onnx", True, {})
            rows.append(Contender(f"fixed depth, {layers} layers", form, make))
        for cost, setting in settings.items():
            make = partial(with_exits, folder, form, setting)
            if is_file:
                path = files / "exits-onnx.onnx" if form == "onnx" else folder / args.int8_file
                make = partial(in_file, path, False, setting)
            rows.append(Contender(f"exits, cost {cost:g}", form, make))
    return rows


def write_files(folder: Path, layers: Sequence[int], files: Path) -> None:
    """Write ONNX files: plain ones of the first layers, and the model with its exits in float32."""
    import onnx_ir

    from modeling.export.graph import to_onnx
    from modeling.export.loops import DepthLoop

    model, _ = load_pretrained(folder)
    for count in layers:
        path, int8_path = (files / f"plain-{count}-{form}.onnx" for form in ("onnx", "int8"))
        write_plain(model.eval(), count, path, int8_path)
    onnx_ir.save(to_onnx(DepthLoop(model), {}), files / "exits-onnx.onnx")


def measure(rows: Sequence[Contender], texts: list[list[int]], rounds: int) -> list[np.ndarray]:
    """Time all contenders in turn; return (rounds, texts) seconds for each."""
    spawn = get_context("spawn")
    found: list[list[list[float]]] = [[] for _ in rows]
    with ExitStack() as stack:
        pools = []
        for row in rows:
            pool = ProcessPoolExecutor(1, spawn, initializer=prepare, initargs=(row.make,))
            pools.append(stack.enter_context(pool))
            with patch.dict(os.environ):
                if row.name == HUGGING_FACE:  # its threads wait as its users' do
                    os.environ.pop("GOMP_SPINCOUNT", None)
                pool.submit(time_each, texts[:3]).result()
        for _ in range(rounds):
            for seconds, pool in zip(found, pools, strict=True):
                seconds.append(pool.submit(time_each, texts).result())
                time.sleep(REST)
    return [np.array(seconds) for seconds in found]


class Cell(NamedTuple):
    """What a contender needs for a text, in milliseconds."""

    mean: float  # over the texts, of each text's median over the rounds
    least: float  # mean of a round
    most: float
    p95: float  # 95% of the texts take less
    spread: float  # see `spread`

    @property
    def is_steady(self) -> bool:
        """Tell whether the rounds are alike enough for the cell to be published."""
        return self.spread <= MOST_SPREAD

    @property
    def text(self) -> str:
        """Write "5.9 (5.6–7.0), 8.0", or "busy" where the machine was."""
        if not self.is_steady:
            return "busy"
        return f"{self.mean:.1f} ({self.least:.1f}–{self.most:.1f}), {self.p95:.1f}"


Cells = dict[str, dict[str, Cell]]  # by name and form


def cells_of(rows: Sequence[Contender], found: Sequence[np.ndarray]) -> Cells:
    """Summarise the rounds, (rounds, texts) seconds, of each contender."""
    cells: Cells = {}
    for row, rounds in zip(rows, found, strict=True):
        of_texts = 1000 * np.median(rounds, axis=0)
        means = 1000 * rounds.mean(1)
        cells.setdefault(row.name, {})[row.form] = Cell(
            mean=float(of_texts.mean()),
            least=float(means.min()),
            most=float(means.max()),
            p95=float(np.quantile(of_texts, 0.95)),
            spread=spread(rounds.mean(1).tolist()),
        )
    return cells


def summary(cells: Cells) -> str:
    """Tabulate mean and 95th percentile, in milliseconds, of each row by form."""
    forms = [form for form in FORMS if any(form in by_form for by_form in cells.values())]
    table = []
    for name, by_form in cells.items():
        texts = [by_form[form].text if form in by_form else "" for form in forms]
        table.append([name, *texts])
    titles = [FORMS[form] for form in forms]
    return markdown_table(["mean ms (range of rounds), p95", *titles], table)


def draw(cells: Cells, path: Path) -> None:
    """Draw PyTorch's and the ONNX files' means as bars, with their ranges, and the p95 as dots."""
    from evaluation.figures import COLOURS, INK, Figure, save_figure, styled

    cells = {name: by_form for name, by_form in cells.items() if name != HUGGING_FACE_TUNED}

    @styled
    def figure() -> Any:
        chart = Figure(figsize=(5.2, 0.62 * len(cells) + 1.1), layout="constrained")
        axes = chart.subplots()
        for number, form in enumerate(("fp32", "onnx")):
            axes.barh(0, 0, color=COLOURS[number], label=f"{FORMS[form]}: mean")
            for place, by_form in enumerate(cells.values()):
                cell = by_form.get(form)
                if cell is None or not cell.is_steady:
                    continue
                height = place + 0.4 * number - 0.2
                below = max(0.0, cell.mean - cell.least)
                above = max(0.0, cell.most - cell.mean)
                whiskers = [[below], [above]]
                colour = COLOURS[number]
                axes.barh(height, cell.mean, 0.36, color=colour, xerr=whiskers, ecolor=INK)
                axes.plot(cell.p95, height, "o", color=colour, markeredgecolor=INK)
        axes.plot([], [], "o", color="white", markeredgecolor=INK, label="95% of texts take less")
        axes.set_yticks(range(len(cells)), list(cells))
        axes.set(xlabel="ms, one text at a time (line: range of rounds)")
        axes.invert_yaxis()
        chart.legend(loc="outside lower center")
        return chart

    save_figure(figure(), path)


def write_csv(rows: Sequence[Contender], found: Sequence[np.ndarray], path: Path) -> None:
    """Write the mean of every round."""
    records = []
    for row, rounds in zip(rows, found, strict=True):
        for number, mean in enumerate(rounds.mean(1), start=1):
            record = {"contender": row.name, "form": FORMS[row.form], "round": number}
            records.append({**record, "seconds_a_text": f"{mean:.6g}"})
    path.write_text(as_csv(records), encoding="utf-8")


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="folder of make_classifier.py's model")
    add("--encoder", required=True, help="folder or hub name of its encoder, for Hugging Face's")
    add("--table", type=Path, required=True, help="table of texts")
    add("--text_column_name", default="text", help="its column with the texts")
    add("--label_column_name", default="truth", help="its column with the labels")
    add("--texts", type=int, default=200, help="use so many of the texts, evenly spaced")
    add("--layers", type=int, nargs="+", default=[6, 4, 3], help="depths of fixed-depth models")
    add("--costs", type=float, nargs="+", default=[1, 0.5, 0.4], help="costs of exits")
    add("--int8_file", default="classifier-int8.onnx", help="int8 ONNX file in the folder")
    add("--forms", nargs="+", choices=list(FORMS), default=list(FORMS), help="columns")
    add("--rounds", type=int, default=10)
    add("--csv", type=Path, help="write the mean of every round to this file")
    add("--chart", type=Path, help="draw the table")
    args = parser.parse_args()
    classifier = Classifier(args.model_dir)
    _, records = read_records(args.table)
    all_texts = []
    labels = []
    for _, record in records:
        all_texts.append(record[args.text_column_name])
        labels.append(record[args.label_column_name])
    trials = try_settings(classifier, all_texts, labels)
    found = {}
    for cost in args.costs:
        found[cost] = min(trials, key=lambda trial: abs(trial.share_of_layers - cost))
    settings = {cost: trial.setting for cost, trial in found.items()}
    texts = evenly_spaced(classifier, all_texts, args.texts)
    print(", ".join(environment(torch.device("cpu")).values()))
    print(f"flags: {processor_flags()}")
    print(f"{len(texts)} texts, {statistics.mean(map(len, texts)):.0f} tokens on average")
    for cost, trial in found.items():
        [(key, value)] = trial.setting.items()
        print(
            f"cost {cost:g}: {key} {value:g}, {trial.share_of_layers:.3f} of the layers and "
            f"accuracy {trial.accuracy:.4f} on {len(all_texts)} rows"
        )
    with TemporaryDirectory() as scratch:
        files = Path(scratch)
        write_files(args.model_dir, args.layers, files)
        rows = contenders_of(args, settings, files)
        seconds = measure(rows, texts, args.rounds)
    cells = cells_of(rows, seconds)
    print("", summary(cells), "", sep="\n")
    if args.csv:
        write_csv(rows, seconds, args.csv)
    if args.chart:
        draw(cells, args.chart)
    noisy = []
    for name, by_form in cells.items():
        for form, cell in by_form.items():
            if not cell.is_steady:
                noisy.append(f"{name}, {FORMS[form]}: {cell.spread:.0%}")
    if noisy:
        sys.exit(
            f"not to be published: {'; '.join(noisy)}. The machine was busy: the quartiles of "
            f"these rounds lie further apart than {MOST_SPREAD:.0%} of their median"
        )


if __name__ == "__main__":
    run_script(main)
