"""The flags of examples/compare_methods.py, and the plan that they make; imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.modes import keys_of
from evaluation.settings import GROUPS, GlueSettings
from glue.tasks import get_task
from modeling.errors import UserError
from modeling.keys import nearest_names
from training.provenance import ROOT
from training.settings import AT_LEAST_0, SettingsParser, parse, setting


class Method(NamedTuple):
    """What a training is of: its --model_type, and the keys of its configuration."""

    model_type: str
    keys: Mapping[str, Any]


# 1/λ_p layers are expected of the two ponder methods. With the prior's usual weight, 0.005, they
# come to use nearly all layers: the first exits are poor before they are trained (docs/results.md).
_PONDER = {
    "target_halt_probability": 0.3,
    "halt_normalization": "last_layer",
    "kl_penalty_factor": 0.02,
}
_PALBERT = {"lambda_layer_arch": "linear_cat", "num_lambda_layers": 3, "lambda_lr": 5e-4}
METHODS = {
    "elbert": Method("albert", {"pooler_input": "cls"}),
    "pondernet": Method("ponder_albert", {**_PONDER, "lambda_layer_arch": "mlp"}),
    "palbert": Method("ponder_albert", {**_PONDER, **_PALBERT, "exit_criteria": "threshold"}),
    "act": Method("albert_act", {}),  # with each --tau
}


class TaskPlan(NamedTuple):
    """A task of the study, and how its trainings run."""

    name: str  # as GLUE writes it
    folder: str
    epochs: float = 3
    rows: int = 0  # of the training set; 0: all
    start: str = ""  # the task whose model of the same method and seed the training starts from


PLANS = {
    plan.name: plan
    for plan in (
        TaskPlan("SST-2", "SST-2", 2, 8000),
        TaskPlan("MRPC", "MRPC"),
        TaskPlan("MNLI", "MNLI", 2),
        TaskPlan("RTE", "RTE", start="MNLI"),
        TaskPlan("STS-B", "STS-B", start="MNLI"),
    )
}
# Defaults of run_glue.py's flags; the caller's own win. Tables need no exactness to the last bit.
GIVEN = "--per_gpu_train_batch_size 32 --per_gpu_eval_batch_size 32 --learning_rate 5e-5".split()
GIVEN += "--save_steps 200 --save_total_limit 1".split()
# The recipe of the sample, whose model is tiny (glue_run.sh).
QUICK_FLAGS = "--do_lower_case --learning_rate 4e-4 --warmup_steps 20 --max_seq_length 64".split()
QUICK = {"tasks": ["RTE"], "seeds": [42], "epochs": ["RTE=3"]}
OUTPUT, QUICK_OUTPUT = "out/methods", "out/methods-quick"
SET_BY_STUDY = (
    "--model_type --task_name --output_dir --num_train_epochs --seed --hp_search --do_train "
    "--do_eval --do_predict --resume_from_checkpoint --overwrite_output_dir"
).split()


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Tasks × methods × seeds. All other flags are run_glue.py's, the same for every training."""

    _argument_group_name = "study"

    model_name_or_path: str | None = setting(None, "encoder with one shared layer")
    data_dir: str | None = setting(None, "holds a folder for each task")
    output_dir: str | None = setting(
        None, f"a folder for each training; tables and figures ({OUTPUT}; --quick: {QUICK_OUTPUT})"
    )
    tasks: list[str] = setting(
        list(PLANS), "NAME, or NAME=FOLDER where the folder has another name", metavar="TASK"
    )
    methods: list[str] = setting(list(METHODS), "which trainings", choices=tuple(METHODS))
    seeds: list[int] = setting([42, 43, 44], "of every method", AT_LEAST_0)
    epochs: list[str] = setting(
        [], "e.g. SST-2=1; if not given: SST-2 and MNLI 2, all others 3", metavar="TASK=NUMBER"
    )
    rows: list[str] = setting(
        [],
        "the first so many training rows; 0: all; if not given: SST-2 8000",
        metavar="TASK=NUMBER",
    )
    tau: list[float] = setting([5e-4], "ACT's price of an update, a training for each", AT_LEAST_0)
    set: list[str] = setting(
        [], "keys of one method, e.g. elbert.pooler_input=mean", metavar="METHOD.KEY=VALUE"
    )
    report_only: bool = setting(False, "train nothing: tables and figures of what is finished")
    quick: bool = setting(False, "try it all on the bundled sample, in two minutes")

    def check(self) -> None:
        if not (self.model_name_or_path and self.data_dir):
            raise UserError("--model_name_or_path and --data_dir are missing; or give --quick")
        if "elbert" not in self.methods:
            raise UserError("--methods lacks elbert, which all others are compared with")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"--seeds {' '.join(map(str, self.seeds))}: give each once")


@dataclass(frozen=True)
class MethodRun:
    """One training."""

    plan: TaskPlan
    method: str  # a key of `Study.methods`
    seed: int

    @property
    def name(self) -> str:
        return f"{self.plan.name}-{self.method}-{self.seed}"


@dataclass(frozen=True)
class Study:
    """Everything that is to be trained.

    flags: of run_glue.py, for all trainings.
    """

    settings: StudySettings
    plans: Mapping[str, TaskPlan]
    methods: Mapping[str, Method]
    flags: Sequence[str]

    @property
    def directory(self) -> Path:
        return Path(self.settings.output_dir)

    def place(self, run: MethodRun) -> Path:
        return self.directory / run.name

    def start(self, run: MethodRun) -> MethodRun | None:
        """The run whose model this one starts from; None: it starts from the encoder."""
        return replace(run, plan=self.plans[run.plan.start]) if run.plan.start else None

    def runs(self, plan: TaskPlan) -> list[MethodRun]:
        """A seed's methods together, so that whole seeds can be reported early."""
        seeds, methods = self.settings.seeds, self.methods
        return [MethodRun(plan, method, seed) for seed in seeds for method in methods]

    def glue_settings(self, run: MethodRun) -> GlueSettings:
        """The run as a call of run_glue.py; UserError for flags that are none."""
        plan, (model_type, keys), start = run.plan, self.methods[run.method], self.start(run)
        values = {
            "model_type": model_type,
            "task_name": plan.name,
            "data_dir": Path(self.settings.data_dir) / plan.folder,
            "model_name_or_path": self.place(start) if start else self.settings.model_name_or_path,
            "output_dir": self.place(run),
            "num_train_epochs": plan.epochs,
            "seed": run.seed,
            "resume_from_checkpoint": "latest",
            **({"max_train_samples": plan.rows} if plan.rows else {}),
        }
        command = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        command += ["--do_train", "--do_eval", *GIVEN, *self.flags]
        if keys:
            command += ["--set", *(f"{key}={value}" for key, value in keys.items())]
        return GlueSettings(*parse(GROUPS, None, command))


def pairs(
    flag: str,
    texts: Sequence[str],
    known: Sequence[str],
    usual: Callable[[str], str] = str,
) -> dict[str, str]:
    """NAME=VALUE texts by name, as `usual` spells it; UserError for another form or name."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and value):
            raise UserError(f"--{flag} {text}: expected NAME=VALUE, e.g. --{flag} {known[0]}=1")
        name = usual(name)
        if name not in known:
            raise UserError(f"--{flag} {text}: {nearest_names(name, list(known))}")
        found[name] = value
    return found


def task_folder(name: str) -> str:
    """The task's name as GLUE writes it, of any usual spelling."""
    return get_task(name).folder


def plans_of(settings: StudySettings) -> dict[str, TaskPlan]:
    """The tasks in the order of their trainings: what others start from comes first."""
    plans: dict[str, TaskPlan] = {}
    for text in settings.tasks:
        name, _, folder = text.partition("=")
        usual = task_folder(name)
        plan = PLANS.get(usual, TaskPlan(usual, usual))
        plans[usual] = plan._replace(folder=folder or plan.folder)
    for plan in list(plans.values()):
        if settings.quick:
            plans[plan.name] = plan._replace(start="")
        elif plan.start:
            plans.setdefault(plan.start, PLANS[plan.start])
    for flag, kind in (("epochs", float), ("rows", int)):
        texts = pairs(flag, getattr(settings, flag), list(plans), task_folder)
        for name, text in texts.items():
            try:
                plans[name] = plans[name]._replace(**{flag: kind(text)})
            except ValueError as error:
                raise UserError(f"--{flag} {name}={text}: not a number") from error
    return dict(sorted(plans.items(), key=lambda item: bool(item[1].start)))


def methods_of(settings: StudySettings) -> dict[str, Method]:
    """The trainings that are asked for, with the keys of --set and, of ACT, each --tau."""
    keys = {name: keys_of(method.model_type).keys for name, method in METHODS.items()}
    own = pairs("set", settings.set, [f"{name}.{key}" for name in keys for key in keys[name]])
    methods = {}
    for name in dict.fromkeys(settings.methods):
        model_type, default = METHODS[name]
        changed = {key: own[f"{name}.{key}"] for key in keys[name] if f"{name}.{key}" in own}
        if name != "act":
            methods[name] = Method(model_type, {**default, **changed})
            continue
        for tau in settings.tau:
            methods[f"act-tau{tau:g}"] = Method(model_type, {**default, **changed, "tau": tau})
    return methods


def read_study(description: str, argv: Sequence[str] | None = None) -> Study:
    """The command line; raises UserError for flags that a training would refuse."""
    found, flags = SettingsParser((StudySettings,), description).parse_known_args(argv)
    settings = StudySettings(**vars(found))
    if settings.quick:
        for name in (*QUICK, "model_name_or_path", "data_dir"):
            if getattr(settings, name) != getattr(StudySettings(), name):
                raise UserError(f"--{name} does not go with --quick, which has its own")
        sample = str(ROOT / "configs/sample")
        settings = replace(settings, model_name_or_path=sample, data_dir=sample, **QUICK)
        flags = [*QUICK_FLAGS, *flags]
    output = settings.output_dir or (QUICK_OUTPUT if settings.quick else OUTPUT)
    settings = replace(settings, output_dir=output)
    if settings.report_only:  # neither is read
        model, data = settings.model_name_or_path or ".", settings.data_dir or "."
        settings = replace(settings, model_name_or_path=model, data_dir=data)
    settings.check()
    if own := [flag for flag in flags if flag.partition("=")[0] in SET_BY_STUDY]:
        raise UserError(f"{own[0]} is what the study sets; see --tasks, --seeds, --epochs")
    study = Study(settings, plans_of(settings), methods_of(settings), flags)
    for plan in study.plans.values():
        for run in study.runs(plan)[: len(study.methods)]:
            study.glue_settings(run).mode.key_flags()
    return study
