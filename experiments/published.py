"""How the published tables are measured with this suite: the work of reproduce.py.

published.toml beside this file has their values, and what each entry needs. An entry's commands are
run one after the other, as a user would give them; its function reads what they left. Nothing here
imports torch until something is measured.
"""

import shlex
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from glue.tasks import evaluation_tasks, get_task
from modeling.errors import UserError
from modeling.loading.files import read_json
from training.runs import call
from utils.console import markdown_table
from utils.files import write_json

ENTRIES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CARD_ROW = ENTRIES["act-glue"]["published"]
CARD_TASKS = [*dict.fromkeys(name.split()[0] for name in CARD_ROW if "-MM" not in name)]
CARD_TEXT = "a lump in the middle of the monkeys stirred and then fell quiet ."
RESULT = "reproduction.json"
Values = dict[str, float | str]
Command = list[str]  # a script and its flags


class Request(NamedTuple):
    """What a run of an entry is given; `flags` are for its scripts, beyond the published ones."""

    weights: str
    data_dir: Path
    text: Path | None
    output: Path
    tasks: Sequence[str] = ()
    flags: Sequence[str] = ()


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
    """ELBERT's README: train, set the threshold, evaluate one example at a time."""
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


def card_commands(request: Request) -> list[Command]:
    """Adaptive Depth's card: as the published notebook, with one setting of its search."""
    recipe = "--do_train --do_eval --per_gpu_train_batch_size 32 --learning_rate 3e-5"
    recipe += " --num_train_epochs 4 --warmup_steps 200 --out_mode one"
    recipe += " --per_gpu_eval_batch_size 32 --resume_from_checkpoint latest"
    tasks = [get_task(task).folder for task in request.tasks] or CARD_TASKS
    return [c for task in tasks for c in glue_commands(request, "albert_act", task, recipe)]


def card_values(request: Request) -> Values:
    """Read the results of this run's tasks and, in the same folder, of earlier ones."""
    values: Values = {}
    for task in CARD_TASKS:
        for _, suffix in evaluation_tasks(get_task(task)):
            name = f"{task}{suffix}"
            path = request.output / name / "eval_results.json"
            if not path.exists():
                continue
            results = read_json(path)
            for metric, value in results["metrics"].items():
                if f"{name} {metric}" in CARD_ROW:
                    values[f"{name} {metric}"] = 100 * value
            values[f"{name} computation cost"] = results["computation_cost"]
    return values


def pretraining_values(request: Request) -> Values:
    """Measure accuracies, where the heads of pre-training are there, and updates."""
    from transformers import PretrainedConfig

    from evaluation.text_reports import evaluate_pretraining
    from modeling import AlbertActConfig, AlbertActForPreTraining, load_config, load_tokenizer
    from training.pretraining import load_weights
    from training.pretraining_data import PretrainingData, check_text
    from training.pretraining_settings import TextSettings
    from training.start import make_accelerator

    if request.text is None:
        raise UserError("--text is missing: an English text to mask, of paragraphs, one a line")
    check_text([request.text])
    config = load_config(request.weights, AlbertActConfig)
    model = AlbertActForPreTraining(config)
    parameters = {name for name, _ in model.named_parameters()}  # without those tied to others
    new = " ".join(parameters.intersection(load_weights(model, request.weights).initialised))
    check_halting_head(request.weights, new)
    length = min(128, config.max_position_embeddings)
    text = TextSettings(train_files=[request.text], split_sentences=True, max_seq_length=length)
    data = PretrainingData(text, load_tokenizer(request.weights), seed=42, batch_size=32)
    found = evaluate_pretraining(make_accelerator(False, "no"), model, data)
    stored, _ = PretrainedConfig.get_config_dict(request.weights)
    return {
        "τ": stored.get("tau", "not in the configuration"),
        "Max iterations": config.num_hidden_layers,
        "mlm (Acc.)": "no head" if "predictions" in new else 100 * found["mlm_acc"],
        "sop (Acc.)": "no head" if "sop" in new else 100 * found["sop_acc"],
        **found["updates"],
        "computation cost": found["updates"]["All tokens"] / found["max_updates"],
    }


def check_halting_head(weights: str, new: str) -> None:
    """Raise UserError where the parameters that `weights` lacks, in `new`, are those of halting."""
    if ".act." in new:
        raise UserError(
            f"{weights} has no halting head, so its updates would be chance: give an ACT model, "
            "such as asi/albert-act-base, or one of run_pretraining.py --model_type albert_act"
        )


def updates_values(request: Request) -> Values:
    """Count how often each piece of the card's example is updated; pieces may repeat."""
    import torch

    from modeling import load_act, load_tokenizer

    classifier, report = load_act(request.weights)
    check_halting_head(request.weights, " ".join(report.initialised))
    tokenizer, model = load_tokenizer(request.weights), classifier.albert.eval()
    inputs = tokenizer(CARD_TEXT, return_tensors="pt")
    with torch.inference_mode():
        updates = model(**inputs).updates.flatten()
    pieces = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    names = [f"{i} {piece}" for i, piece in enumerate(pieces, 1)]
    cost = float(updates.mean()) / model.config.num_hidden_layers
    return {**dict(zip(names, updates.tolist(), strict=True)), "computation cost": cost}


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
        first, second = (int(model.eval()(["My cool new text"])["passes"]) for _ in range(2))
    return {
        "total_loss": loss.item(),
        "passes, first call": first,
        "passes, second call": second,
        "computation cost": (first + second) / 2 / model.config.num_hidden_layers,
    }


COMMANDS = {"elbert-rte": elbert_commands, "act-glue": card_commands, "parity": parity_commands}
MEASURE = {
    "elbert-rte": elbert_values,
    **{f"act-pretraining-{size}": pretraining_values for size in ("tiny", "small", "base")},
    "act-glue": card_values,
    "act-updates": updates_values,
    "parity": parity_values,
    "ponder-snippets": snippet_values,
}


def run_entry(name: str, request: Request) -> dict[str, Any]:
    """Run and measure an entry; write and return its reproduction.json.

    Raises UserError for flags that mean nothing to the entry.
    """
    entry = ENTRIES[name]
    tasks = CARD_TASKS if name == "act-glue" else ()
    meaningless = {
        "--weights": "" if entry["weights"] else request.weights,
        "--text": "" if entry["data"] == "--text" else request.text,
        "--tasks": " ".join(x for x in request.tasks if get_task(x).folder not in tasks),
        "": "" if name in COMMANDS else " ".join(request.flags),
    }
    for flag, value in meaningless.items():
        if value:
            raise UserError(f"{flag} {value}".strip() + f": {name} has no use for it")
    began = time.perf_counter()
    for script, *flags in COMMANDS[name](request) if name in COMMANDS else ():
        print(f"$ python {shlex.join([script, *flags])}", flush=True)
        call(script, flags)
    result = {
        "entry": name,
        "weights": request.weights,
        "flags": list(request.flags),
        "measured": MEASURE[name](request),
        "seconds of the last run": round(time.perf_counter() - began, 1),
    }
    write_json(request.output / RESULT, result)
    return result


def result_table(result: Mapping[str, Any]) -> str:
    """Format published and measured values side by side, as Markdown."""
    name, measured = result["entry"], result["measured"]
    published, rows = ENTRIES[name]["published"], []
    for row in dict.fromkeys([*published, *measured]):
        cells = published.get(row, "–"), measured.get(row, "not run")
        rows.append([row, *(x if isinstance(x, str) else f"{x:.4g}" for x in cells)])
    cut = f", with {shlex.join(result['flags'])}" if result["flags"] else ""
    weights = f" with {result['weights']}" if result["weights"] else ""
    return (
        f"**{name}**: {ENTRIES[name]['document']}\n\n"
        f"{markdown_table(('', 'published', 'measured'), rows)}\n\n"
        f"Measured{weights}{cut}; the last run took {result['seconds of the last run']:.0f} s."
    )


def results_in(output: Path) -> dict[str, dict[str, Any]]:
    """Read what entries left that were run, by name."""
    paths = {name: output / name / RESULT for name in ENTRIES}
    return {name: read_json(path) for name, path in paths.items() if path.exists()}


def listing(output: Path) -> str:
    """Say what each entry needs, and whether it was run, as Markdown."""
    found, rows = results_in(output), []
    for name, entry in ENTRIES.items():
        hours = [f"{x:g} h" for x in entry["hours"]]
        needs = entry["document"], entry["weights"] or "none", entry["data"]
        state = "measured" if name in found else "not run"
        rows.append([name, *needs, hours[0], *(hours[1:] or ["–"]), state])
    head = ("entry", "published in", "weights", "data", "2 CPU cores", "GPU", "here")
    return markdown_table(head, rows)
