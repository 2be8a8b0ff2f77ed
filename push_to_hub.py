"""Put a trained model on the Hugging Face hub, with a model card made from its evaluation.

    python ./push_to_hub.py --model_dir out/albert_base/RTE --hub_model_id me/elbert-rte

The card is README.md in --model_dir; a card of your own is left as it is. Without --hub_model_id
the command only writes the card. Otherwise it sends weights, configuration, exit_config.json,
tokenizer, card and exits.png. Sign in first: `hf auth login`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData, metadata_load
from yaml import YAMLError

from elbert_base.errors import UserError
from elbert_base.exit_settings import resolve
from elbert_base.files import find_file, read_json, resolve_within
from elbert_base.keys import keys_of
from glue.tasks import TASKS
from runs.console import markdown_table
from runs.files import RunFolder, fingerprint
from runs.flags import option, parse
from runs.folder import UsedFiles
from runs.processes import run_script
from runs.provenance import training_flags

CARD, PICTURE = "README.md", "exits.png"
SENT = "config.json exit_config.json *token*.json spiece.model vocab.txt merges.txt"
SENT += f" model*.safetensors* {CARD} {PICTURE}"
METRICS = {"acc": "accuracy", "mcc": "matthews_correlation", "pearson": "pearsonr"}  # the hub's
# Flags of the training that name no file of its machine.
TRAINED_WITH = "learning_rate per_gpu_train_batch_size num_train_epochs max_seq_length seed".split()
TEXT = """
# {name}

This text classifier stops when it is sure: easy texts take fewer of its layers. The computation
cost is the mean share of layers that ran.

{results}

{picture}

```python
import elbert  # pip install it from its repository
from transformers import pipeline

how = {{"pipeline_class": elbert.EarlyExitPipeline}}  # says after which layer a text exits
classify = pipeline("text-classification", "{name}", **how)
classify.model.config.{key}  # an exit setting: a new value takes effect at the next call
```

{settings}
"""


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """The model and its repository."""

    model_dir: Path = option(..., "folder of the trained and evaluated model")
    hub_model_id: str | None = option(None, "repository, e.g. me/rte; default: only the card")
    license: str | None = option(None, "licence on the card, e.g. apache-2.0")
    language: str | None = option(None, "language of the texts, e.g. en")
    dataset: str | None = option(None, "training data on the hub; default: GLUE's for its tasks")
    base_model: str | None = option(None, "starting model on the hub; default: the training's")
    hub_private_repo: bool = option(False, "make a new repository private")


def evaluated(folder: Path, weights: str) -> dict[str, Any]:
    """Read eval_results.json; UserError unless it is of the weights and exit settings there are."""
    path, config = find_file(folder, "eval_results.json"), find_file(folder, "config.json")
    if not path or not config:
        raise UserError(f"{folder} has no evaluation: run run_glue.py --do_eval first")
    results = read_json(path)
    rule = resolve(folder, keys_of(read_json(config).get("model_type"))).values
    same_weights = weights == results["provenance"]["weights"]
    if not same_weights or results["rule"] != dict(rule):
        what = "exit settings" if same_weights else "weights"
        raise UserError(
            f"{path} is of other {what} than {folder} has now: evaluate again, with run_glue.py "
            "--do_eval"
        )
    return results


def identity(results: Mapping[str, Any]) -> str:
    """Give the hash of what a card's numbers belong to: weights, data and exit settings."""
    about = results["provenance"]
    return fingerprint(about["weights"], about.get("data"), sorted(results["rule"].items()))


def quoted(card: Path) -> str | None:
    """Read which evaluation a card quotes, by its `evaluation`; None of a card of one's own."""
    try:
        return (metadata_load(card) or {}).get("evaluation")
    except (ValueError, YAMLError):  # not a card of this command, at least
        return None


def data_of(results: Mapping[str, Any]) -> dict[str, str]:
    """Name the evaluated data in the hub's words."""
    task, data = results["task"], results.get("dataset", "unknown")
    if task not in TASKS or data != task:
        file = results["provenance"]["flags"].get("validation_file")
        return {"dataset_type": "custom", "dataset_name": Path(file).name if file else data}
    return {
        "dataset_type": "nyu-mll/glue",
        "dataset_name": f"GLUE {TASKS[task].folder}",
        "dataset_config": task.replace("-", ""),
        "dataset_split": "validation_matched" if task == "mnli" else "validation",
    }


def model_card(settings: HubSettings, results: Mapping[str, Any]) -> ModelCard:
    """Make the card of a model from its evaluation's results."""
    folder = settings.model_dir
    name = settings.hub_model_id or folder.absolute().name
    data, rule = data_of(results), results["rule"]
    numbers = results["metrics"] | {x: results[x] for x in ("computation_cost", "flops_ratio")}
    flags = training_flags(folder)
    # From the hub, weights are read out of its cache.
    base = re.search("models--(.+?)--(.+?)/snapshots", str(flags.get("model_name_or_path")))
    task, glue = "text-classification", data["dataset_type"]
    on_the_hub = None if glue == "custom" else [glue]
    about = ModelCardData(
        model_name=name,
        base_model=settings.base_model or ("/".join(base.groups()) if base else None),
        license=settings.license,
        language=settings.language,
        datasets=[settings.dataset] if settings.dataset else on_the_hub,
        library_name="transformers",
        evaluation=identity(results),
        pipeline_tag=task,
        tags=["early-exit", read_json(folder / "config.json")["model_type"]],
        eval_results=[
            EvalResult(
                task_type=task,
                dataset_type=data["dataset_type"],
                dataset_name=data["dataset_name"],
                dataset_config=data.get("dataset_config"),
                dataset_split=data.get("dataset_split"),
                metric_type=METRICS.get(name, name),
                metric_name=name,
                metric_value=value,
            )
            for name, value in numbers.items()
        ],
    )
    text = TEXT.format(
        name=name,
        results=markdown_table(
            (f"{data['dataset_name']}, {results['examples']} examples", ""),
            [(metric, f"{value:.4f}") for metric, value in numbers.items()],
        )
        + "".join(f"\n\n**Suspect:** {x}." for x in results.get("remarks", ())),
        picture=f"![Where examples exit]({PICTURE})" if find_file(folder, PICTURE) else "",
        settings=markdown_table(
            ("exit settings, and the training's", ""),
            [*rule.items(), *((x, flags[x]) for x in TRAINED_WITH if x in flags)],
        ),
        key=next(key for key, value in rule.items() if isinstance(value, float)),
    )
    return ModelCard(f"---\n{about.to_yaml()}\n---\n{text}")


def main() -> None:
    (settings,) = parse([HubSettings], __doc__)
    folder, target = settings.model_dir, settings.hub_model_id
    card, used = folder / CARD, UsedFiles(folder, folder / "eval_results.json")
    if not card.exists() or RunFolder(folder).has_own(CARD):
        text = str(model_card(settings, evaluated(folder, used.weights)))
        used.check()
        RunFolder(folder).write_text(CARD, text)
        print(f"written: {card}")
    elif (its := quoted(card)) and its != identity(evaluated(folder, used.weights)):
        raise UserError(
            f"{card}, which was edited, has the numbers of an earlier evaluation: rename it, and "
            "give the command again for a new one to copy from"
        )
    else:
        print(f"{card} is your own: it is left as it is")
    if target:
        sent = [x for x in folder.iterdir() if any(x.match(pattern) for pattern in SENT.split())]
        if out := [x for x in sent if not resolve_within(folder, x.name)]:
            raise UserError(f"{out[0]} is a link that leads out of {folder}: copy its file there")
        used.check()
        patterns: list[str] = [*SENT.split()]
        try:
            HfApi().create_repo(target, private=settings.hub_private_repo, exist_ok=True)
            url = HfApi().upload_folder(
                repo_id=target,
                folder_path=folder,
                allow_patterns=patterns,
                ignore_patterns=["*/*"],
            )
        except Exception as error:  # of the hub, or of the HTTP client that it happens to use
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{target}: the hub does not take it ({reason})") from error
        print(f"sent: {url}")


if __name__ == "__main__":
    run_script(main)
