"""The published tables, and how each is measured with this suite: the work of reproduce.py.

An entry's commands are run one after the other, as a user would give them; `measure` reads what
they left. Nothing here imports torch until something is measured.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.settings import GROUPS
from glue.tasks import evaluation_tasks, get_task
from modeling.errors import UserError
from modeling.loading.files import read_json
from training.parity_settings import ParitySettings
from training.runs import call
from training.settings import parse
from utils.files import write_json
from utils.markdown import markdown_table

TEXT = "--text"  # the data of entries that read a text of the user's
CARD_TEXT = "a lump in the middle of the monkeys stirred and then fell quiet ."
# Its pieces, and how often asi/albert-act-base updates each, as the card prints it.
CARD_PIECES = ["[CLS]", *(f"▁{word}" for word in CARD_TEXT.split()), "[SEP]"]
CARD_UPDATES = (15, 9, 10, 7, 3, 8, 5, 7, 12, 10, 6, 8, 8, 9, 5, 8)
RESULT = "reproduction.json"
TAKES_FLAGS = {"run_glue.py": GROUPS, "run_parity.py": (ParitySettings,)}
Values = dict[str, float | str]
Command = list[str]  # a script and its flags


@dataclass(frozen=True)
class Request:
    """What a run of an entry is given.

    flags: for the entry's scripts, beyond the published ones.
    """

    weights: str
    data_dir: Path
    text: Path | None
    output: Path
    tasks: Sequence[str] = ()
    flags: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A published table.

    document: where it is printed.
    weights: the hub name of what it was made with, if anything.
    data: what it needs beside.
    hours: on 2 CPU cores, and at 100 TFLOP/s, where a GPU would help; from the operations.
    published: its values by name.
    commands: makes the scripts' command lines for a request.
    tasks: what --tasks may name.
    measure: reads the values that they left, by the same names, and the computation cost.
    """

    document: str
    weights: str = ""
    data: str = "nothing"
    hours: tuple[float, float | None]
    published: Mapping[str, float | str]
    commands: Callable[[Request], list[Command]] = lambda request: []
    tasks: Sequence[str] = ()
    measure: Callable[[Request], Values]
    note: str = ""


# ELBERT's README: train, set the threshold, evaluate one example at a time.


def glue_commands(request: Request, kind: str, task: str, recipe: str) -> list[Command]:
    """Fetch the task's files, unless they are there, and run run_glue.py."""
    data = request.data_dir / task
    where = ["--data_dir", str(data), "--model_name_or_path", request.weights]
    where += ["--output_dir", str(request.output / task)]
    words = f"--model_type {kind} --task_name {task} --do_lower_case --max_seq_length 128 {recipe}"
    fetch = ["download_glue_data.py", "--data_dir", str(request.data_dir), "--tasks", task]
    glue = ["run_glue.py", *where, *words.split(), *request.flags]
    return [glue] if data.is_dir() else [fetch, glue]


def elbert_commands(request: Request) -> list[Command]:
    train = "--do_train --per_gpu_train_batch_size 32 --learning_rate 3e-5 --num_train_epochs 3.0"
    train += " --save_steps 5000 --resume_from_checkpoint latest"
    edit = f"--key exit_thres --value 0.1 --task RTE --model large --out_dir {request.output}"
    evaluate = "--do_eval --per_gpu_eval_batch_size 1 --out_mode one"
    return [
        *glue_commands(request, "albert", "RTE", train),
        ["change_config.py", *edit.split()],
        glue_commands(request, "albert", "RTE", evaluate)[-1],
    ]


def elbert_values(request: Request) -> Values:
    results = read_json(request.output / "RTE/eval_results.json")
    return {"acc": results["metrics"]["acc"], "computation cost": results["computation_cost"]}


# Adaptive Depth's model card: fine-tuning on GLUE.

CARD_ROW = {
    "CoLA mcc": 36.7,
    "SST-2 acc": 87.8,
    "MRPC acc": 81.4,
    "MRPC f1": 86.5,
    "STS-B spearmanr": 83.0,
    "STS-B pearson": 84.2,
    "QQP acc": 87.7,
    "QQP f1": 68.5,
    "MNLI acc": 79.9,
    "MNLI-MM acc": 79.2,
    "QNLI acc": 89.0,
    "RTE acc": 63.0,
    "WNLI acc": 65.1,
}
CARD_TASKS = tuple(dict.fromkeys(name.split()[0] for name in CARD_ROW if "-MM" not in name))


def card_tasks(request: Request) -> Sequence[str]:
    return [get_task(task).folder for task in request.tasks] or CARD_TASKS


def card_commands(request: Request) -> list[Command]:
    """Follow the published notebook, with one setting of its search."""
    recipe = "--do_train --do_eval --per_gpu_train_batch_size 32 --learning_rate 3e-5"
    recipe += " --num_train_epochs 4 --warmup_steps 200 --out_mode one"
    recipe += " --per_gpu_eval_batch_size 32 --resume_from_checkpoint latest"
    tasks = card_tasks(request)
    return [c for task in tasks for c in glue_commands(request, "albert_act", task, recipe)]


def card_values(request: Request) -> Values:
    """Read the results of this run's tasks and, in the same folder, of earlier ones."""
    values: Values = {}
    asked = card_tasks(request)
    for task in CARD_TASKS:
        if task not in asked and not (request.output / task / "eval_results.json").exists():
            continue
        for _, suffix in evaluation_tasks(get_task(task)):
            name = f"{task}{suffix}"
            results = read_json(request.output / name / "eval_results.json")
            values |= {
                f"{name} {metric}": 100 * value
                for metric, value in results["metrics"].items()
                if f"{name} {metric}" in CARD_ROW
            }
            values[f"{name} computation cost"] = results["computation_cost"]
    return values


# Adaptive Depth's README: what was pre-trained.


def published_updates(tau: str, numbers: str) -> dict[str, float | str]:
    """Name the numbers of a column of the table, in its order."""
    names = ["Max iterations", "mlm (Acc.)", "sop (Acc.)", "All tokens", "All unmasked tokens"]
    names += ["[MASK/MASK]", "[MASK/random]", "[MASK/original]", "[CLS]", "[SEP]"]
    return {"τ": float(tau), **dict(zip(names, map(float, numbers.split()), strict=True))}


def pretraining_values(request: Request) -> Values:
    """Measure accuracies, where the heads of pre-training are there, and updates."""
    from transformers import PretrainedConfig

    from evaluation.text_reports import evaluate_pretraining
    from modeling import AlbertActConfig, AlbertActForPreTraining, load_config, load_tokenizer
    from training.pretraining import load_weights
    from training.pretraining_data import PretrainingData
    from training.pretraining_settings import TextSettings
    from training.start import make_accelerator
    from training.text import check_text

    if request.text is None:
        raise UserError("--text is missing: an English text to mask, of paragraphs, one a line")
    check_text([request.text])
    config = load_config(request.weights, AlbertActConfig)
    tokenizer = load_tokenizer(request.weights)
    model = AlbertActForPreTraining(config)
    parameters = {name for name, _ in model.named_parameters()}  # without those tied to others
    new = " ".join(parameters.intersection(load_weights(model, request.weights).initialised))
    check_halting_head(request.weights, new)
    length = min(128, config.max_position_embeddings)
    text = TextSettings(train_files=[request.text], split_sentences=True, max_seq_length=length)
    data = PretrainingData(text, tokenizer, seed=42, batch_size=32)
    found = evaluate_pretraining(make_accelerator(False, "no"), model, data)
    heads = {"mlm (Acc.)": ("predictions", "mlm_acc"), "sop (Acc.)": ("sop", "sop_acc")}
    stored, _ = PretrainedConfig.get_config_dict(request.weights)
    values: Values = {"τ": stored.get("tau", "not in the configuration")}
    values["Max iterations"] = config.num_hidden_layers
    for name, (head, key) in heads.items():
        values[name] = "no head" if head in new else 100 * found[key]
    values |= found["updates"]
    return {**values, "computation cost": found["updates"]["All tokens"] / found["max_updates"]}


def check_halting_head(weights: str, new: str) -> None:
    """Raise UserError where the parameters that `weights` lacks, in `new`, are those of halting."""
    if ".act." in new:
        raise UserError(
            f"{weights} has no halting head, so its updates would be chance: give an ACT model, "
            "such as asi/albert-act-base, or one of run_pretraining.py --model_type albert_act"
        )


def updates_values(request: Request) -> Values:
    """Count how often each piece of the card's example is updated."""
    import torch

    from modeling import load_act, load_tokenizer

    classifier, report = load_act(request.weights)
    check_halting_head(request.weights, " ".join(report.initialised))
    tokenizer, model = load_tokenizer(request.weights), classifier.albert.eval()
    inputs = tokenizer(CARD_TEXT, return_tensors="pt")
    with torch.inference_mode():
        updates = model(**inputs).updates.flatten()
    pieces = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    cost = float(updates.mean()) / model.config.num_hidden_layers
    return {**numbered(pieces, updates.tolist()), "computation cost": cost}


def numbered(pieces: Sequence[str], updates: Sequence[float]) -> dict[str, float]:
    """Name updates by number and piece, for pieces may repeat."""
    names = [f"{i} {piece}" for i, piece in enumerate(pieces, 1)]
    return dict(zip(names, updates, strict=True))


# PonderNet and PonderALBERT.


def parity_commands(request: Request) -> list[Command]:
    return [["run_parity.py", "--seed", "1", "--output_dir", str(request.output), *request.flags]]


def parity_values(request: Request) -> Values:
    found = read_json(request.output / "results.json")["in_distribution"]
    return {"sampled accuracy": found["accuracy"], "steps": found["steps"]}


def snippet_values(request: Request) -> Values:
    """Take one step of training with 43 layers, and call twice; both halt by chance."""
    import torch

    from modeling import PonderAlbertClassifier, PonderClassificationLoss

    torch.manual_seed(0)
    model = PonderAlbertClassifier.from_pretrained(
        request.weights, num_hidden_layers=43, target_halt_probability=0.2
    )
    optimizer = torch.optim.Adam(model.parameters())
    criterion = PonderClassificationLoss(kl_penalty_factor=1e-2)
    loss = criterion(model.train()(["The cat sat on the mat"]), [0])["total_loss"]
    loss.backward()
    optimizer.step()
    with torch.inference_mode():
        passes = [int(model.eval()(["My cool new text"])["passes"]) for _ in range(2)]
    calls = dict(zip(("passes, first call", "passes, second call"), passes, strict=True))
    cost = sum(passes) / 2 / model.config.num_hidden_layers
    return {"total_loss": loss.item(), **calls, "computation cost": cost}


# The list.

ACT_README = "Adaptive Depth's README, table of pre-trained models"
ACT_COLUMNS = {
    "tiny": ("1e-3", "6 55.4 80.9 3.8 3.5 5.8 5.8 4.0 6.0 2.5", 0.02),
    "small": ("5e-4", "12 57.1 83.9 7.1 6.5 10.9 10.9 7.4 12.0 7.6", 0.04),
    "base": ("2.5e-4", "24 57.4 84.3 10.0 9.2 16.0 16.0 10.5 22.5 8.4", 0.08),
}
ENTRIES = {
    "elbert-rte": PublishedTable(
        document="ELBERT's README",
        weights="albert/albert-large-v2",
        data="RTE (fetched)",
        hours=(0.9, 0.003),
        published={"acc": 0.8122743682310469, "computation cost": 0.5881},
        commands=elbert_commands,
        measure=elbert_values,
    ),
    **{
        f"act-pretraining-{size}": PublishedTable(
            document=f"{ACT_README}, {size}",
            weights=f"asi/albert-act-{size}",
            data=TEXT,
            hours=(hours, 0.001),
            published=published_updates(tau, numbers),
            measure=pretraining_values,
            note="The published text is not known, and its classes of tokens overlap, see "
            "docs/pretraining.md: numbers on another text differ. mlm and sop need the heads of "
            "pre-training; for weights without them the table says so.",
        )
        for size, (tau, numbers, hours) in ACT_COLUMNS.items()
    },
    "act-glue": PublishedTable(
        document="asi/albert-act-base's model card, GLUE",
        weights="asi/albert-act-base",
        data="nine GLUE tasks (fetched)",
        hours=(136, 0.4),
        published=CARD_ROW,
        tasks=CARD_TASKS,
        commands=card_commands,
        measure=card_values,
        note="reproduce.py measures on the dev sets, with one setting of the published search. The "
        "card does not say of which sets its numbers are. They are likely those of the hidden test "
        "sets: 65.1% is the larger class's share of WNLI's (95 of 146).",
    ),
    "act-updates": PublishedTable(
        document="asi/albert-act-base's model card, tokens and updates",
        weights="asi/albert-act-base",
        hours=(0.01, None),
        published=numbered(CARD_PIECES, CARD_UPDATES),
        measure=updates_values,
    ),
    "parity": PublishedTable(
        document="PonderNet, parity of 8 elements as in the annotated code",
        hours=(0.1, None),
        published={"sampled accuracy": "figure", "steps": "figure"},
        commands=parity_commands,
        measure=parity_values,
        note="Paper and annotated code show curves, and print no number.",
    ),
    "ponder-snippets": PublishedTable(
        document="PonderALBERT's README",
        weights="albert/albert-base-v2",
        hours=(0.01, None),
        published={"passes, first call": 5, "passes, second call": 8},
        measure=snippet_values,
        note="An example: the halting head is untrained and every call draws anew.",
    ),
}


# Running and showing them.


def check_request(name: str, request: Request) -> None:
    """Raise UserError for flags that mean nothing to the entry."""
    entry = ENTRIES[name]
    if request.weights and not entry.weights:
        raise UserError(f"--weights {request.weights}: {name} starts from no weights")
    if request.text and entry.data != TEXT:
        raise UserError(f"--text {request.text}: {name} reads no text")
    for task in request.tasks:
        if get_task(task).folder not in entry.tasks:
            known = f"the table has {', '.join(entry.tasks)}" if entry.tasks else "it has no choice"
            raise UserError(f"--tasks {task}: not one of {name}'s, {known}")
    commands = entry.commands(request)
    if request.flags and not commands:
        raise UserError(f"{request.flags[0]}: {name} has no script to give it to")
    for script, *words in commands:
        if script in TAKES_FLAGS:
            parse(TAKES_FLAGS[script], None, words)


def run_entry(name: str, request: Request) -> dict[str, Any]:
    """Run and measure an entry; write and return its reproduction.json."""
    check_request(name, request)
    began = time.perf_counter()
    for script, *flags in ENTRIES[name].commands(request):
        print(f"$ python {shlex.join([script, *flags])}", flush=True)
        call(script, flags)
    result = {
        "entry": name,
        "weights": request.weights,
        "flags": list(request.flags),
        "measured": ENTRIES[name].measure(request),
        "seconds of the last run": round(time.perf_counter() - began, 1),
    }
    write_json(request.output / RESULT, result)
    return result


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def result_table(result: Mapping[str, Any]) -> str:
    """Format published and measured values side by side, as Markdown."""
    name, measured = result["entry"], result["measured"]
    entry = ENTRIES[name]
    rows = [
        (row, shown(entry.published.get(row, "–")), shown(measured.get(row, "not run")))
        for row in dict.fromkeys([*entry.published, *measured])
    ]
    cut = f", with {shlex.join(result['flags'])}" if result["flags"] else ""
    weights = f" with {result['weights']}" if result["weights"] else ""
    seconds = result["seconds of the last run"]
    parts = [
        f"**{name}**: {entry.document}",
        markdown_table(("", "published", "measured"), rows),
        f"Measured{weights}{cut}; the last run took {seconds:.0f} s.",
        entry.note,
    ]
    return "\n\n".join(filter(None, parts))


def results_in(output: Path) -> dict[str, dict[str, Any]]:
    """Read what entries left that were run, by name."""
    paths = {name: output / name / RESULT for name in ENTRIES}
    return {name: read_json(path) for name, path in paths.items() if path.exists()}


def listing(output: Path) -> str:
    """Say what each entry needs, and whether it was run, as Markdown."""
    found, rows = results_in(output), []
    for name, entry in ENTRIES.items():
        times = (f"{hours:g} h" if hours else "–" for hours in entry.hours)
        state = "measured" if name in found else "not run"
        rows.append((name, entry.document, entry.weights or "none", entry.data, *times, state))
    head = ("entry", "published in", "weights", "data", "2 CPU cores", "GPU", "here")
    return markdown_table(head, rows)
