"""A run of sweep_exits.py: open the models, record, sweep, pick, draw, compare."""

import copy
import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from evaluation.exit_metrics import at_exit
from evaluation.figures import save_figure
from evaluation.modes import trained_mode
from evaluation.modes.base import Mode
from evaluation.predict import is_main
from evaluation.scores import remark_lines, remarks
from evaluation.sweep import Grids, Recording, Sweep, make_grids, sweep, sweepable
from exit_lab.abstaining import coverage_lines, risk_coverage, risk_coverage_figure
from exit_lab.choice import Parts, choose, split
from exit_lab.compare import check_labels, compare_two_models, write_comparison
from exit_lab.exit_file import check_fitted_to_others, check_held_out_is_new, save_choice
from exit_lab.explorer import PageInfo, explorer_page
from exit_lab.figures import frontier_figure
from exit_lab.frontiers import frontier_set
from exit_lab.goals import MaxDrop, MaxRisk
from exit_lab.learnt import fit_learnt
from exit_lab.methods import SweptModel, compare_methods
from exit_lab.recording import RECORDING, load_or_record
from exit_lab.settings import LEARNT, OPTIMAL_STOPPING, SweepRequest
from exit_lab.stopping import fit_stopping
from exit_lab.tables import write_tables
from exit_lab.verify import verify
from glue.splits import Example, Split
from glue.tables import as_csv
from glue.tasks import Task
from modeling.configuration import EarlyExitConfig
from modeling.errors import UserError
from modeling.exit_settings import Setting
from modeling.files import resolve_within
from modeling.rules import certainty, exit_scores, layer_answers, scan
from runs.files import check_place
from runs.flags import as_dict
from runs.folder import RunFolder
from runs.job import Job, find_task, open_job
from runs.output_dir import check_finished, locked_for_sweep
from runs.start import make_accelerator, start_script

BAND_RESAMPLES = 400  # of a figure's intervals
COMPARISON_FILES = ("compare.md", "compare.csv", "compare.json", "compare.png")
ENTROPY = "entropy"  # the exit rule
FOLDS = 5  # of the calibration examples


@dataclass(frozen=True)
class Lab:
    """A trained model on its dev set, and what is to be swept."""

    request: SweepRequest
    directory: Path  # of the model
    output: Path  # of the results
    mode: Mode
    job: Job  # the model on the dev set
    examples: list[Example]
    grids: Grids

    @property
    def seed(self) -> int:
        """Seed of the split, of resamples and of samples."""
        return self.request.data.seed

    @property
    def parts(self) -> Parts:
        """The examples that choose, and those that report; UserError where there are too few."""
        return split(len(self.examples), self.request.choice.calibration_fraction, self.seed)


def run(request: SweepRequest) -> None:
    """Do what the flags ask for, on the task's dev set."""
    data, choice = request.data, request.choice
    accelerator = make_accelerator(data.no_cuda, "no")
    start_script(accelerator, data.seed)
    if request.sweep.verify and accelerator.num_processes > 1:
        raise UserError("--verify needs one process: give it without torchrun")
    task = find_task(data, request.folders[0])
    # All models are opened before any is recorded: what is wrong with the flags is said at once.
    labs = {folder: open_lab(request, folder, task, accelerator) for folder in request.folders}
    if choice.goal():
        for folder, lab in labs.items():
            held_out = [lab.examples[row] for row in lab.parts.report]
            check_held_out_is_new(folder, held_out, request.sweep.refitted_keys)
    if choice.compare:
        check_labels([lab.job for lab in labs.values()])
        check_rules(request, labs)
    outputs = [lab.output for lab in labs.values()]
    if data.output_dir:
        outputs.append(Path(data.output_dir))
    with locked_for_sweep(outputs if is_main() else []):
        # All processes share the recording. The main one does the rest alone.
        recordings = {folder: load_or_record(lab.output, lab.job) for folder, lab in labs.items()}
        if not is_main():
            return
        if choice.compare:
            compare_models(request, labs, recordings)
            return
        (lab,) = labs.values()
        (recording,) = recordings.values()
        sweep_model(lab, recording)


def open_lab(request: SweepRequest, directory: Path, task: Task, accelerator: Accelerator) -> Lab:
    """Load a model trained on `task`, and the task's dev set.

    Raises UserError for an unknown rule, key or value of a grid, before minutes go into a
    recording.
    """
    data, flags = request.data, request.sweep
    # Models that are compared keep their recordings with them.
    output = output_folder(directory, None if request.choice.compare else data.output_dir)
    check_place(output / RECORDING)
    check_finished(directory, "run_glue.py")
    mode = trained_mode(directory)
    mode.check_has_rules()
    dev = Split(task, data.folder, "dev")
    job = open_job(
        directory,
        task,
        dev,
        data,
        device=accelerator.device,
        do_lower_case=data.do_lower_case,
        seed=data.seed,
        flags=as_dict(*request),
        batch_size=data.batch_size,
    )
    examples = list(dev.examples(data.max_eval_samples))
    if isinstance(request.choice.goal(), MaxRisk):
        check_fitted_to_others(directory, job, examples)
    job = replace(job.in_type(flags.dtype), compile=flags.torch_compile)
    return Lab(
        request=request,
        directory=directory,
        output=output,
        mode=mode,
        job=job,
        examples=examples,
        grids=grids_of(request, job.config, directory),
    )


def grids_of(request: SweepRequest, config: EarlyExitConfig, directory: Path) -> Grids:
    """Make the grids of --rules and --grid for a model; see `make_grids` for what it raises.

    Of models that are compared, each has those of the rules that its mode has; by default its own.
    Raises UserError for one that has none of them.
    """
    flags = request.sweep
    rules = list(dict.fromkeys(flags.rules or sweepable(config)))
    grid_texts = {}
    for item in flags.grid:
        key, _, text = item.partition("=")
        grid_texts[key] = text
    if not request.choice.compare:
        return make_grids(config, rules, grid_texts)
    known_rules = config.exit_rules()
    if flags.rules:
        rules = [rule for rule in rules if rule in known_rules]
    else:
        rules = [own_setting(config)[config.rule_key]]
    if not rules:
        raise UserError(
            f"--rules {' '.join(flags.rules or ())}: {directory} has none of them; its rules: "
            f"{', '.join(sweepable(config))}"
        )
    keys_read = set().union(*(known_rules[rule].reads for rule in rules))
    return make_grids(
        config, rules, {key: text for key, text in grid_texts.items() if key in keys_read}
    )


def output_folder(directory: Path, output_dir: str | None) -> Path:
    """Return the folder of the results: --output_dir, by default `sweep` in the model's folder.

    Raises UserError for a link there that leads out of the model's folder.
    """
    if output_dir:
        return Path(output_dir)
    model_folder = Path(os.path.abspath(directory))
    if not resolve_within(model_folder, "sweep"):
        raise UserError(f"{model_folder / 'sweep'} leads out of {model_folder}: give --output_dir")
    return model_folder / "sweep"


def compare_models(
    request: SweepRequest, labs: Mapping[Path, Lab], recordings: Mapping[Path, Recording]
) -> None:
    """Compare models at equal costs, two models also under their own settings; write the results.

    labs, recordings: by the models' folders.
    """
    models = request.choice.models()
    swept = {}
    for name, folders in models.items():
        swept[name] = [swept_model(labs[folder], recordings[folder]) for folder in folders]
    first_lab = next(iter(labs.values()))
    compared = compare_methods(swept, first_lab.parts, request.data.seed)
    text = compared.as_markdown()
    if len(models) == 2:
        sides = {}
        for name, folders in models.items():
            sides[name] = [(labs[folder].job, recordings[folder]) for folder in folders]
        own_settings = compare_two_models(sides, request.data.seed)
        text = f"Each model under its own setting:\n\n{own_settings}\n\n{text}"
    for lab in labs.values():
        lab.job.check_unchanged()
    print(f"\n{text}", end="")
    for directory, lab in labs.items():
        recording = recordings[directory]
        for remark in remarks(lab.job.task, recording.predictions[-1], recording.labels):
            print(f"suspect: {directory}, all layers: {remark}")
    figure = request.choice.figure
    if figure:
        save_figure(compared.figure(), figure)
        print(f"\nfigure: {figure}")
    if request.data.output_dir:
        results = RunFolder(request.data.output_dir)
        results.remove(COMPARISON_FILES)  # of an earlier comparison
        results.write_text("compare.md", text)
        results.write_text("compare.csv", as_csv(compared.csv_rows()))
        origins = {str(lab.directory): lab.job.origin.provenance.as_json() for lab in labs.values()}
        results.write_json("compare.json", {"provenance": origins})
        if not request.sweep.tables_only:
            save_figure(compared.figure(), results.path / "compare.png", results)
        print(f"\ncompare.md, compare.csv and more: {results.path}")


def check_rules(request: SweepRequest, labs: Mapping[Path, Lab]) -> None:
    """Raise UserError for seeds of one model with different rules, and for what no model reads."""
    for name, folders in request.choice.models().items():
        rules = {directory: list(labs[directory].grids) for directory in folders}
        if any(of_seed != rules[folders[0]] for of_seed in rules.values()):
            raise UserError(
                f"--compare {name}: the folders have different rules "
                f"({'; '.join(f'{path}: {of_seed[0]}' for path, of_seed in rules.items())}); give "
                "--rules"
            )
    grids = [lab.grids for lab in labs.values()]
    rules_read = set().union(*grids)
    keys_read = {key for of_model in grids for grid in of_model.values() for key in grid}
    for rule in request.sweep.rules or ():
        if rule not in rules_read:
            raise UserError(f"--rules {rule}: no model of --compare has this rule")
    for item in request.sweep.grid:
        key = item.partition("=")[0]
        if key not in keys_read:
            raise UserError(f"--grid {item}: no rule that is compared reads {key}")


def swept_model(lab: Lab, recording: Recording) -> SweptModel:
    """Sweep a model for a comparison."""
    lengths = lab.job.features.lengths.tolist()  # in tokens
    full_depth = [lab.job.config.full_depth_flops(length) for length in lengths]
    swept = fit_and_sweep(lab, recording, lab.parts.calibration)
    return SweptModel(honest_sweep(lab, recording, swept), float(np.mean(full_depth)))


def fit_and_sweep(lab: Lab, recording: Recording, rows: np.ndarray) -> Sweep:
    """Fit those of --rules that are fitted to some examples, and sweep a model."""
    config: EarlyExitConfig = lab.job.config
    fitted_rules = lab.request.sweep.fitted_rules
    if OPTIMAL_STOPPING in fitted_rules:
        config = fit_stopping(config, recording, rows)
    if LEARNT in fitted_rules:
        config = fit_learnt(config, recording, rows)
    return sweep(config, lab.grids, recording, lab.job.task)


def honest_sweep(lab: Lab, recording: Recording, swept: Sweep) -> Sweep:
    """Return the sweep on which settings are chosen; see `cross_fitted`."""
    if not lab.request.sweep.fitted_rules:
        return swept
    return cross_fitted(
        swept, partial(fit_and_sweep, lab, recording), lab.parts.calibration, lab.seed
    )


def cross_fitted(
    swept: Sweep, fit: Callable[[np.ndarray], Sweep], rows: np.ndarray, seed: int
) -> Sweep:
    """Return a sweep in which each example of its fit is answered by a fit that did not see it.

    A setting that is chosen on the examples of its own fit seems to lose less than it does on new
    ones. So these examples are dealt into folds, and each fold is answered by a fit to the others.
    All other examples are as in `swept`.

    Args:
        swept: under a fit to `rows`.
        fit: sweeps under a fit to some examples, given by their numbers.
        rows: numbers of the examples.
        seed: of the folds.
    """
    if len(rows) < FOLDS:
        return swept
    exit_layer = swept.exit_layer.copy()
    predictions = swept.predictions.copy()
    dealt = np.random.default_rng(seed).permutation(rows)
    for fold in np.array_split(dealt, FOLDS):
        without_fold = fit(np.setdiff1d(rows, fold))
        exit_layer[:, fold] = without_fold.exit_layer[:, fold]
        predictions[:, fold] = without_fold.predictions[:, fold]
    return dataclasses.replace(swept, exit_layer=exit_layer, predictions=predictions)


def sweep_model(lab: Lab, recording: Recording) -> None:
    """Sweep one model, pick a setting where --pick asks for one, and write all results."""
    flags, goal = lab.request.sweep, lab.request.choice.goal()
    swept = fit_and_sweep(lab, recording, lab.parts.calibration)
    # What is chosen and compared; tables and the explorer show the fit as it is saved.
    honest = honest_sweep(lab, recording, swept)
    start = own_setting(swept.config)  # the setting that the explorer shows first
    choice = None
    if goal:
        # Every rule costs a share of delta, so without --rules only the model's own is tested.
        rules = flags.rules or [start[swept.config.rule_key]]
        choice = choose(honest, goal, rules, lab.parts.calibration)
        if choice.setting is not None:
            start = swept.settings[choice.setting]
    fitted_to = []
    if flags.fitted_rules:
        fitted_to = [lab.examples[row] for row in lab.parts.calibration]
    chosen_from = honest
    if choice and choice.setting is None and isinstance(goal, MaxDrop):
        # A recalibration that was fitted to few rows may itself lose more than is allowed.
        all_layers = sweep_of_all_layers(lab, recording)
        if all_layers:
            chosen_from, fitted_to = all_layers, []
            reason = f"no setting with early exits loses at most {goal.limit:g}: all layers run"
            choice = dataclasses.replace(choice, setting=0, reason=reason)
    lab.job.check_unchanged()
    results = RunFolder(lab.output)
    results.remove(results.read_list().keys() - {RECORDING})  # of an earlier sweep
    results.write_json("provenance.json", lab.job.origin.provenance.as_json())
    write_tables(swept, lab.output)
    write_risk_coverage(lab, recording, swept, start)
    if flags.verify:
        verify(lab.job, lab.mode, swept, flags.verify, lab.seed, lab.output / RECORDING)
    if not flags.tables_only:
        write_figures(lab, recording, swept, honest, start)
    if choice:
        save_choice(
            lab.directory,
            lab.job,
            chosen_from,
            choice,
            lab.parts,
            lab.seed,
            recording.tensors,
            fitted_to,
        )
    else:
        for line in remark_lines(remarks_on(swept, recording, start), lab.directory):
            print(line)
    if lab.request.choice.compare is not None:
        write_comparison(honest, lab.parts, lab.seed, lab.output)


def sweep_of_all_layers(lab: Lab, recording: Recording) -> Sweep | None:
    """Sweep the one setting under which all layers run and answer as they were trained.

    None in a mode without the rule entropy, whose uncertainty is never below 0.
    """
    config: EarlyExitConfig = copy.deepcopy(lab.job.config)
    if ENTROPY not in config.exit_rules():
        return None
    config.exit_calibration = []
    return sweep(config, {ENTROPY: {"exit_thres": (0.0,)}}, recording, lab.job.task)


def write_risk_coverage(lab: Lab, recording: Recording, swept: Sweep, start: Setting) -> None:
    """Print what abstaining gains under a setting, on held-out rows; write the whole curve."""
    table = risk_coverage(swept, start, recording.tensors, lab.parts.report)
    if table is None:
        return
    results = RunFolder(lab.output)
    results.write_text("risk_coverage.csv", as_csv(table))
    if not lab.request.sweep.tables_only:
        save_figure(risk_coverage_figure(table), lab.output / "risk_coverage.png", results)
    print("\n".join(coverage_lines(table)))


def own_setting(config: EarlyExitConfig) -> Setting:
    """Return the rule as the model has it configured, with the keys that it reads.

    A rule that cannot be swept gives way to the first that can.
    """
    if config.exit_rule().never_exits:
        return config.keys_read(**{config.rule_key: sweepable(config)[0]})
    return config.keys_read()


def write_figures(
    lab: Lab, recording: Recording, swept: Sweep, honest: Sweep, start: Setting
) -> None:
    """Write frontier.png, and explorer.html, which opens at the setting `start`.

    honest: of `honest_sweep`, for the frontier, whose settings are chosen.
    """
    task, results = lab.job.task, RunFolder(lab.output)
    fronts = frontier_set(honest, lab.parts, BAND_RESAMPLES, lab.seed)
    figure = frontier_figure(fronts, task)
    save_figure(figure, lab.output / "frontier.png", results)
    if lab.request.choice.figure:
        save_figure(figure, lab.request.choice.figure)
    answers = layer_answers(swept.config.exit_rule(), recording.tensors)
    scores = exit_scores(answers, task.multi_label)
    page = explorer_page(
        swept,
        lab.examples,
        confidence=certainty(scores, task.multi_label).numpy(),
        info=page_info(lab, recording, swept, start),
        seed=lab.seed,
    )
    results.write_text("explorer.html", page)
    print(f"frontier.png and explorer.html: {lab.output}")


def page_info(lab: Lab, recording: Recording, swept: Sweep, start: Setting) -> PageInfo:
    """Collect what explorer.html says beside the sweep; it opens at the setting `start`."""
    task, config = lab.job.task, swept.config
    setting = config.keys_read(**start)
    exits = scan(config.exit_rule(**setting), recording.tensors).numpy()
    return PageInfo(
        title=f"Exit explorer: {task.shown_name}, {lab.directory.name}",
        start=closest_setting(swept, setting, exits),
        fixed=fixed_keys(swept),
        command=f"python run_glue.py --do_eval --output_dir {shlex.quote(str(lab.directory))}",
        remarks=remarks_on(swept, recording, start),
    )


def remarks_on(swept: Sweep, recording: Recording, setting: Setting) -> list[str]:
    """List what is suspect about a model's answers under a setting."""
    rule = swept.config.exit_rule(**swept.config.keys_read(**setting))
    exits = scan(rule, recording.tensors).numpy()
    answers = at_exit(swept.predictions, exits)
    return remarks(swept.task, answers, swept.labels, exits, swept.num_layers)


def closest_setting(swept: Sweep, setting: Setting, exits: np.ndarray) -> int:
    """Return the number of a setting in the sweep, or of the swept setting most like it.

    That is the one under which most examples exit at the same layer as under the setting.

    exits: exit layers under the setting, (examples,).
    """
    for number, candidate in enumerate(swept.settings):
        if candidate.items() <= setting.items():
            return number
    same_exits = (swept.exit_layer == exits).sum(1)
    return int(same_exits.argmax())


def fixed_keys(swept: Sweep) -> dict[str, Any]:
    """Return the exit keys that the swept rules read and the sweep does not vary."""
    rules = swept.config.exit_rules()
    keys_read: set[str] = set()
    varied: set[str] = set()
    for rule, grid in swept.grids.items():
        keys_read.update(rules[rule].reads)
        varied.update(grid)
    fixed = keys_read - varied
    return {name: value for name, value in swept.config.exit_keys().items() if name in fixed}
