"""The exit lab: one full-depth pass over the dev set, then every rule and every threshold.

Sweep:

    python sweep_exits.py --model_dir $OUT_DIR/RTE --data_dir $GLUE_DIR/RTE --task_name RTE

writes to $OUT_DIR/RTE/sweep: the recorded pass (all_logits.safetensors), sweep.csv (a row a
setting), frontier.csv (what no other setting beats), figures, and explorer.html. Then

    --rules bias_1 patience --grid exit_thres=0:1:0.02 cnt_thres=1:N   what is swept
    --pick max_cost=0.5               the best setting that costs no more than this
    --pick max_drop=0.01              the cheapest within 0.01 of full depth
    --pick risk=0.02 delta=0.05       the same with a guarantee: see exit_choice.py
    --compare                         the rules at equal costs; several --model_dir: their mean
    --verify 5                        rerun 5 settings for real, one example at a time
    --vary exit_thres                 the published loop: rows of eval_results.txt
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter
from transformers.utils import logging as hf_logging

from evaluation.figures import save_figure
from evaluation.modes import Config, mode_of
from evaluation.running import append_results, load_trained, run_early_exit
from exit_lab.choice import (
    Cell,
    Choice,
    Parts,
    best_under_cost,
    cheapest_within,
    choice_table,
    compare,
    comparison_table,
    control_risk,
    split,
)
from exit_lab.explorer import explorer_page
from exit_lab.pictures import figures_of
from exit_lab.recording import Recording, recorded
from exit_lab.sweep import (
    RULE_SETS,
    RuleSet,
    Setting,
    Sweep,
    describe,
    frontier_table,
    make_grids,
    nearest_setting,
    parse_values,
    scan_setting,
    sweep,
    table,
)
from glue.features import Features, encode
from glue.files import run_script, write_json, write_text
from glue.tables import as_csv
from glue.tasks import (
    Example,
    Task,
    compute_metrics,
    custom_task,
    evaluation_tasks,
    get_task,
    primary_metric,
    read_examples,
)
from modeling import UserError, load_config
from modeling.compilation import EarlyExitModel
from modeling.elbert.exits import exit_scores
from modeling.keys import nearest_names
from modeling.loading.files import read_json
from modeling.memory import keep_freed_memory
from training.checkpoints import check_finished

LIMITS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
GOAL_KEYS = ("max_cost", "max_drop", "risk", "delta", "range")


# The command line.


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model_dir", required=True, nargs="+", help="trained model; with --compare also several")
    add("--data_dir", default=".", help="folder with the task's .tsv files")
    add("--task_name", help="GLUE task, e.g. RTE")
    add("--validation_file", help="instead of --task_name: the user's own dev file")
    add("--output_dir", help="where results go (default: MODEL_DIR/sweep)")
    add("--rules", nargs="+", help="exit rules to sweep (default: all)")
    add(
        "--grid",
        nargs="+",
        default=[],
        metavar="KEY=VALUES",
        help="e.g. cnt_thres=1:N margin=0,0.1",
    )
    add("--pick", nargs="+", metavar="GOAL=VALUE", help="max_cost, max_drop, or risk and delta")
    add("--calibration_fraction", default=0.5, type=float, help="of the dev set, to choose by")
    add("--compare", action="store_true", help="table of the rules at equal costs")
    add("--verify", default=0, type=int, metavar="K", help="rerun K random settings for real")
    add("--vary", metavar="KEY[=VALUES]", help="only this key, the rest as configured: "
        "appends to eval_results.txt as TEST_MODE=all does")  # fmt: skip
    add("--tables_only", action="store_true", help="no figures, no explorer.html")
    add("--batch_size", default=1, type=int, help="of the recorded pass; 1 is exact to the bit")
    add("--max_seq_length", default=128, type=int, help="longer texts are truncated")
    add("--max_eval_samples", type=int, help="use only the first so many")
    add("--do_lower_case", action="store_true", help="for uncased models")
    add("--no_cuda", action="store_true", help="stay on the CPU")
    add("--seed", default=42, type=int, help="of the split, the bootstrap and --verify")
    args = parser.parse_args()
    if not (args.task_name or args.validation_file):
        raise UserError("--task_name is missing; give one of GLUE's, or your own --validation_file")
    if len(args.model_dir) > 1 and (args.pick or args.vary):
        raise UserError("--pick and --vary take one --model_dir")
    for name, smallest in (("batch_size", 1), ("verify", 0), ("seed", 0), ("max_eval_samples", 1)):
        if getattr(args, name) is not None and getattr(args, name) < smallest:
            raise UserError(f"--{name} {getattr(args, name)}: allowed is {smallest} or more")
    args.rules = args.rules and list(dict.fromkeys(args.rules))
    return args


class Goal(NamedTuple):
    """What --pick asks for; exactly one of max_cost, max_drop and (risk, delta)."""

    max_cost: float | None = None
    max_drop: float | None = None
    risk: float | None = None
    delta: float | None = None
    range: float | None = None  # of a regression task's scores, where the task does not say


def parse_goal(items: Sequence[str]) -> Goal:
    """Goal from KEY=VALUE texts; raises UserError saying what goes together."""
    values: dict[str, float] = {}
    for item in items:
        key, _, text = item.partition("=")
        if key not in GOAL_KEYS:
            raise UserError(f"--pick {item}: {nearest_names(key, list(GOAL_KEYS))}")
        try:
            values[key] = float(text)
        except ValueError as error:
            raise UserError(f"--pick {item}: {text!r} is not a number") from error
        inside = 0 < values[key] < 1 if key in ("risk", "delta") else values[key] >= 0
        if not inside or values[key] == float("inf"):
            allowed = "between 0 and 1" if key in ("risk", "delta") else "0 or more"
            raise UserError(f"--pick {item}: allowed is a number {allowed}")
    if set(values) - {"range"} not in ({"max_cost"}, {"max_drop"}, {"risk", "delta"}):
        raise UserError(
            f"--pick {' '.join(items)}: give max_cost=…, or max_drop=…, or risk=… with delta=…"
        )
    return Goal(**values)


def grid_texts(items: Sequence[str]) -> dict[str, str]:
    """KEY=VALUES texts by key."""
    for item in items:
        if "=" not in item:
            raise UserError(f"--grid {item}: expected KEY=VALUES, e.g. exit_thres=0:1:0.02")
    return dict(item.split("=", 1) for item in items)


def find_task(args: argparse.Namespace) -> Task:
    """The GLUE task, or the user's own with the labels that the trained model has."""
    if args.task_name:
        return get_task(args.task_name)
    config = load_config(args.model_dir[0])
    labels = [config.id2label[i] for i in range(config.num_labels)]
    one = config.num_labels == 1
    return custom_task(None, args.validation_file, None, [] if one else labels)


# Loading and sweeping.


@dataclass
class Lab:
    """A trained model, a dev set, and the recorded pass of one over the other."""

    directory: Path  # of the model
    output: Path
    task: Task
    model: EarlyExitModel
    pad_token_id: int
    rule_set: RuleSet
    examples: list[Example]
    features: Features
    recording: Recording

    @property
    def own_setting(self) -> Setting:
        """The rule as the model has it configured, and the keys that it reads.

        A rule that cannot be swept gives way to the first that can.
        """
        keys, rules = self.model.config.exit_keys(), self.rule_set.reads(self.task.is_regression)
        rule = keys[self.rule_set.name_key]
        if rule in self.rule_set.unswept:
            rule = next(iter(rules))
        return {self.rule_set.name_key: rule, **{name: keys[name] for name in rules[rule]}}

    @property
    def fixed(self) -> Setting:
        """Exit keys that no grid varies: choices, such as window_score."""
        keys = self.model.config.exit_keys()
        choices = [name for name, key in self.rule_set.keys.items() if key.choices]
        return {name: keys[name] for name in choices if name != self.rule_set.name_key}


def open_lab(
    args: argparse.Namespace, directory: Path, task: Task, part: Task, output: Path
) -> Lab:
    """Load a model trained on `task` and record it on `part`, the task or its second half."""
    check_finished(directory)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.no_cuda else "cpu")
    model, tokenizer = load_trained(directory, task, device, args.do_lower_case)
    mode = mode_of(model.config)
    if mode.stops_tokens:
        raise UserError(
            f"{directory} is a model of --model_type {mode.name}: its tokens stop by the halting "
            "probabilities that it was trained with, so there is nothing to sweep"
        )
    rule_set = RULE_SETS[model.config.model_type]
    examples = read_examples(part, args.data_dir, "dev", args.max_eval_samples)
    check_request(args, part, len(examples), model.config)
    features = encode(examples, tokenizer, args.max_seq_length - mode.extra_tokens)
    features = mode.prepare(features, args.seed)
    path = output / "all_logits.safetensors"
    pad = tokenizer.pad_token_id
    with exit_keys(model.config, rule_set.recorded_as):
        recording = recorded(path, model, features, pad, args.batch_size)
    return Lab(directory, output, part, model, pad, rule_set, examples, features, recording)


@contextmanager
def exit_keys(config: Config, setting: Setting) -> Iterator[None]:
    """`setting` in force; on leaving, the exit keys are again what they were."""
    before = config.exit_keys()
    config.update({**before, **setting})
    try:
        yield
    finally:
        config.update(before)


def check_request(args: argparse.Namespace, task: Task, examples: int, config: Any) -> None:
    """Raise UserError for a wrong flag before minutes go into a recording."""
    mode_of(config).check_length(args.max_seq_length, config)
    rule_set = RULE_SETS[config.model_type]
    rules = args.rules or list(rule_set.reads(task.is_regression))
    texts = grid_texts(args.grid)
    make_grids(rule_set, rules, texts, config.num_hidden_layers, task.is_regression)
    if args.vary:
        varied_values(args.vary, config.num_hidden_layers, rule_set)
        rule = config.exit_keys()[rule_set.name_key]
        if rule in rule_set.unswept:
            raise UserError(f"--vary {args.vary}: {rule} has no exits: {rule_set.unswept[rule]}")
    if args.pick:
        parse_goal(args.pick)
    if args.pick or args.compare:
        split(examples, args.calibration_fraction, args.seed)


def sweep_lab(args: argparse.Namespace, lab: Lab) -> Sweep:
    regression = lab.task.is_regression
    rules = args.rules or list(lab.rule_set.reads(regression))
    grids = make_grids(
        lab.rule_set,
        rules,
        grid_texts(args.grid),
        lab.model.config.num_hidden_layers,
        regression,
        lab.fixed,
    )
    return sweep(lab.rule_set, grids, lab.recording, lab.task)


def write_tables(lab: Lab, swept: Sweep) -> None:
    """sweep.csv and frontier.csv."""
    rows = table(swept)
    best = frontier_table(rows, primary_metric(lab.task))
    write_text(lab.output / "sweep.csv", as_csv(rows))
    write_text(lab.output / "frontier.csv", as_csv(best))
    print(f"{len(rows)} settings: {lab.output / 'sweep.csv'}; {len(best)} on the frontier")


def verify(args: argparse.Namespace, lab: Lab, swept: Sweep) -> None:
    """Run random settings with early exit, one example at a time; exit layers must be equal.

    Raises UserError naming the first setting and example that differ.
    """
    rng = np.random.default_rng(args.seed)
    count = min(args.verify, len(swept.settings))
    for number in rng.choice(len(swept.settings), count, replace=False):
        setting = swept.settings[number]
        with exit_keys(lab.model.config, setting):
            record = run_early_exit(lab.model, lab.features, 1, lab.pad_token_id)
        found, expected = record.exit_layer.numpy(), swept.exit_layer[number]
        if (found != expected).any():
            row = int((found != expected).argmax())
            recorded_logits = lab.recording.tensors["all_logits"][found[row] - 1, row]
            apart = (record.logits[row] - recorded_logits).abs().max()
            raise UserError(
                f"{describe(setting, swept.name_key)}: {(found != expected).sum()} examples "
                f"exit elsewhere in a real run; example {row} at layer {found[row]}, by the "
                f"recording at {expected[row]}, with logits {apart:.1e} apart. If that is "
                "rounding, the pass was recorded on another machine or with --batch_size > 1: "
                f"delete {lab.output / 'all_logits.safetensors'} and run again"
            )
    print(f"verified {count} settings at batch size 1: every exit layer is equal")


# Picking.


def choose(args: argparse.Namespace, lab: Lab, swept: Sweep, parts: Parts) -> Choice:
    goal = parse_goal(args.pick)
    rows = parts.calibration
    if goal.risk is not None:
        # Every rule costs a share of delta, so without --rules only the model's own is tested.
        rules = args.rules or [lab.own_setting[swept.name_key]]
        low, high = lab.task.score_range or (0, goal.range)
        width = (high or 0) - low
        return control_risk(swept, lab.rule_set, rules, rows, goal.risk, goal.delta, width)
    metric = swept.main_metric(swept.exit_layer, rows)
    cost = swept.cost(swept.exit_layer, rows)
    if goal.max_cost is not None:
        chosen = best_under_cost(cost, metric, goal.max_cost)
        return Choice(chosen, f"best setting at a cost of at most {goal.max_cost:g}")
    full = swept.main_metric(swept.truncations[-1:], rows)[0]
    chosen = cheapest_within(cost, metric, full - goal.max_drop)
    return Choice(chosen, f"cheapest setting within {goal.max_drop:g} of full depth")


def write_choice(lab: Lab, setting: Setting) -> None:
    """Make `setting` what the next evaluation uses, by exit_config.json."""
    path = lab.directory / "exit_config.json"
    config_path = lab.directory / "config.json"
    config = read_json(config_path)
    has_text = path.is_file() and path.read_bytes().strip()
    old = read_json(path) if has_text else {}
    kept = {name: value for name, value in old.items() if name not in lab.rule_set.keys}
    write_json(path, {**kept, **setting, **lab.fixed})
    print(f"written to {path}; the next evaluation of {lab.directory} uses it")
    pointed = config.get("exit_config_path")
    if pointed != path.name:
        write_json(config_path, {**config, "exit_config_path": path.name})
        print(f"{config_path}: exit_config_path {pointed!r} -> {path.name!r}")


# Comparing.


def write_comparison(args: argparse.Namespace, sweeps: Sequence[Sweep], output: Path) -> None:
    """The comparison as Markdown, printed and in compare.md; with the settings in compare.csv."""
    parts = split(len(sweeps[0].labels), args.calibration_fraction, args.seed)
    cells = compare(sweeps, parts, LIMITS, seed=args.seed)
    of_models = f"mean of {len(sweeps)} models, " if len(sweeps) > 1 else ""
    text = (
        f"{sweeps[0].task.name}, 100 × {primary_metric(sweeps[0].task)}: {of_models}best setting "
        f"at or under each cost, chosen on {len(parts.calibration)} examples, reported on the "
        f"other {len(parts.report)} [95% bootstrap interval] at its cost there\n\n"
        f"{comparison_table(cells, LIMITS)}\n"
    )
    write_text(output / "compare.md", text)
    write_text(output / "compare.csv", as_csv(comparison_rows(cells)))
    print(f"\n{text}")


def comparison_rows(cells: dict[str, list[Cell | None]]) -> list[dict[str, Any]]:
    return [
        {
            "rule": rule,
            "max_cost": limit,
            "metric": cell.metric,
            "low": cell.low,
            "high": cell.high,
            "cost": cell.cost,
            "settings": "; ".join(cell.settings),
        }
        for rule, row in cells.items()
        for limit, cell in zip(LIMITS, row, strict=True)
        if cell
    ]


def draw(args: argparse.Namespace, lab: Lab, swept: Sweep, setting: Setting) -> None:
    """The figures, as PNG and to TensorBoard, and the explorer; `setting` is looked at closely."""
    whole = {**lab.fixed, **setting}
    figures = figures_of(swept, lab.rule_set, lab.recording, whole, args.seed)
    with SummaryWriter(str(lab.output / "runs")) as writer:
        for name, figure in figures.items():
            writer.add_figure(f"{lab.task.name}/{name}", figure, close=False)
            save_figure(figure, lab.output / f"{name}.png")
    page = explorer_page(
        swept,
        lab.examples,
        exit_scores(lab.recording.tensors["all_logits"]).amax(-1).numpy(),
        f"Exit explorer: {lab.task.name}, {lab.directory.name}",
        nearest_setting(swept, setting, scan_setting(lab.rule_set, whole, lab.recording)),
        args.seed,
    )
    write_text(lab.output / "explorer.html", page)
    print(f"figures ({', '.join(figures)}) and explorer.html: {lab.output}")


# The published loop.


def varied_values(request: str, num_layers: int, rule_set: RuleSet) -> tuple[str, Sequence[float]]:
    """Key and values of --vary; without values those of the published loop."""
    key, _, text = request.partition("=")
    published = {
        "exit_thres": "0.9:0.1:-0.1",
        "cnt_thres": f"{min(2, num_layers)}:{min(12, num_layers)}",
    }
    return key, parse_values(key, text or published.get(key, ""), num_layers, rule_set.keys)


def vary(args: argparse.Namespace, lab: Lab, results: Path) -> None:
    """eval_results.txt anew: a row for every value of one key, the other keys as configured."""
    layers, rule_set = lab.model.config.num_hidden_layers, lab.rule_set
    key, values = varied_values(args.vary, layers, rule_set)
    configured = lab.model.config.exit_keys()
    for number, value in enumerate(values):
        rule = {**configured, key: value}
        exits = scan_setting(rule_set, rule, lab.recording)[0]
        answers = lab.recording.predictions[exits.astype(np.intp) - 1, np.arange(len(exits))]
        summary = {
            "metrics": compute_metrics(lab.task, answers, lab.recording.labels),
            "computation_cost": exits.mean(dtype=float) / layers,
            "rule": rule,
        }
        append_results(results, summary, "all" if number else "one")
        metrics = ", ".join(f"{name} = {v}" for name, v in sorted(summary["metrics"].items()))
        print(f"{key} {value:g}: Computation cost: {summary['computation_cost']:.4f}, {metrics}")
    print(f"{len(values)} rows: {results}")


# The story.


def run_part(args: argparse.Namespace, task: Task, part: Task, suffix: str) -> None:
    """Everything asked for, on the dev set of `part`: the task, or its second half."""
    directories = [Path(name) for name in args.model_dir]
    outputs = output_folders(args, directories, suffix)
    labs = [
        open_lab(args, directory, task, part, output)
        for directory, output in zip(directories, outputs, strict=True)
    ]
    if args.vary:
        directory = directories[0]
        vary(args, labs[0], directory.with_name(directory.name + suffix) / "eval_results.txt")
        return
    sweeps = [run_lab(args, lab, pick=bool(args.pick) and part == task) for lab in labs]
    if args.compare:
        write_comparison(args, sweeps, outputs[0] if len(labs) == 1 else outputs[0].parent)


def run_lab(args: argparse.Namespace, lab: Lab, pick: bool) -> Sweep:
    """Sweep, and with `pick` choose, one model; write what there is to see."""
    swept, setting, choice = sweep_lab(args, lab), lab.own_setting, None
    parts = None
    if pick:
        parts = split(len(swept.labels), args.calibration_fraction, args.seed)
        choice = choose(args, lab, swept, parts)
        setting = setting if choice.setting is None else swept.settings[choice.setting]
    write_tables(lab, swept)
    if args.verify:
        verify(args, lab, swept)
    if not args.tables_only:
        draw(args, lab, swept, setting)
    if choice is None:
        return swept
    if choice.setting is None:
        raise UserError(f"no setting qualifies: {choice.note}; exit_config.json not written")
    print(f"\nPicked: {describe(setting, swept.name_key)}\n({choice.note})\n")
    print(choice_table(swept, choice.setting, parts, args.seed) + "\n")
    write_choice(lab, setting)
    return swept


def output_folders(args: argparse.Namespace, models: Sequence[Path], suffix: str) -> list[Path]:
    """Where each model's results go; several models' comparison goes beside the first's."""
    if not args.output_dir:
        return [model.with_name(model.name + suffix) / "sweep" for model in models]
    output = Path(args.output_dir + suffix)
    if len(models) == 1:
        return [output]
    return [output / f"{i}-{model.name}" for i, model in enumerate(models, start=1)]


def main() -> None:
    args = parse_args()
    logging.basicConfig(format="%(levelname)s - %(message)s", level="INFO", stream=sys.stdout)
    logging.getLogger("filelock").setLevel(logging.WARNING)
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    keep_freed_memory()
    task = find_task(args)
    for part, suffix in evaluation_tasks(task):
        run_part(args, task, part, suffix)


if __name__ == "__main__":
    run_script(main)
