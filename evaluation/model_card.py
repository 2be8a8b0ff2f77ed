"""A model card made from a model's evaluation: what was measured, on what, and how to use it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from huggingface_hub import EvalResult, ModelCard, ModelCardData, metadata_load
from yaml import YAMLError

from glue.tables import read_records
from glue.tasks import TASKS
from modeling.errors import UserError
from modeling.exit_settings import resolve
from modeling.files import find_file, read_json
from modeling.keys import keys_of, training_keys
from runs.console import markdown_table
from runs.fingerprint import differences, fingerprint
from runs.folder import RunFolder
from runs.hub_upload import CARD, PICTURE, HubSettings
from runs.provenance import HASHES, training_flags
from runs.settings import EMISSIONS_FILE
from runs.used_files import UsedFiles

# The hub's names of metrics, where they are others.
HUB_METRICS = {"acc": "accuracy", "mcc": "matthews_correlation", "pearson": "pearsonr"}
# Flags of the training that the card shows. They name no file of the training's machine.
SHOWN_FLAGS = (
    "learning_rate",
    "per_gpu_train_batch_size",
    "num_train_epochs",
    "max_seq_length",
    "seed",
)
PIPELINE = "text-classification"
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


@dataclass(frozen=True)
class Evaluation:
    """What the card needs of a model's eval_results.json.

    Attributes:
        task: the task's name.
        dataset: the data's name: the task's, unless they only have its layout.
        examples: their number.
        numbers: metrics and costs by name.
        rule: the exit settings by key.
        remarks: what is suspect in the results.
        validation_file: the evaluated table; None for a task of GLUE.
        hashes: of the data and of the model, by the names of `model_hashes`.
        onnx: the ONNX file that was evaluated; None for the model itself.
    """

    task: str
    dataset: str
    examples: int
    numbers: Mapping[str, float]
    rule: Mapping[str, Any]
    remarks: Sequence[str]
    validation_file: str | None
    hashes: Mapping[str, str]
    onnx: str | None

    @classmethod
    def from_json(cls, results: Mapping[str, Any]) -> Self:
        """Read the content of an eval_results.json.

        Raises KeyError, TypeError, ValueError or AttributeError for another program's.
        """
        provenance = results["provenance"]
        numbers = {**results["metrics"]}
        for name in ("computation_cost", "flops_ratio"):
            numbers[name] = results[name]
        return cls(
            task=str(results["task"]),
            dataset=str(results.get("dataset", "unknown")),
            examples=int(results["examples"]),
            numbers={name: float(value) for name, value in numbers.items()},
            rule={**results["rule"]},
            remarks=[str(remark) for remark in results.get("remarks", ())],
            validation_file=provenance["flags"].get("validation_file"),
            hashes={name: str(provenance[name]) for name in HASHES if name in provenance},
            onnx=results.get("onnx"),
        )

    @property
    def identity(self) -> str:
        """Hash of what the numbers belong to: weights, data and exit settings."""
        return fingerprint(sorted(self.hashes.items()), sorted(self.rule.items()))


@dataclass(frozen=True)
class HubData:
    """The evaluated data as the hub names them; None where they are not on the hub."""

    kind: str
    name: str
    config: str | None = None
    split: str | None = None

    @property
    def is_custom(self) -> bool:
        """Whether the data are the user's own."""
        return self.kind == "custom"


def read_evaluation(folder: Path, model_hashes: Mapping[str, str]) -> Evaluation:
    """Read the eval_results.json of a model.

    model_hashes: of the folder's weights, tokenizer and configuration, by these names.

    Raises UserError unless it is of these, and of the exit settings that the folder has now.
    """
    path = find_file(folder, "eval_results.json")
    config_path = find_file(folder, "config.json")
    if not path or not config_path:
        raise UserError(f"{folder} has no evaluation: run run_glue.py --do_eval first")
    try:
        evaluation = Evaluation.from_json(read_json(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is not as an evaluation writes it ({error!r:.100}): evaluate again, with "
            "run_glue.py --do_eval"
        ) from error
    model_type = read_json(config_path).get("model_type")
    rule = dict(resolve(folder, keys_of(model_type)).values)
    changed = list(differences(evaluation.hashes, model_hashes))
    if evaluation.rule != rule:
        changed.append("exit settings")
    if changed:
        reason = f"is of other {' and '.join(changed)} than {folder} has now"
    elif evaluation.onnx:
        reason = f"is of the ONNX file {evaluation.onnx}, not of the model in {folder}"
    else:
        return evaluation
    raise UserError(f"{path} {reason}: evaluate again, with run_glue.py --do_eval")


def hub_data(evaluation: Evaluation) -> HubData:
    """Name the evaluated data as the hub does."""
    task = evaluation.task
    if task not in TASKS or evaluation.dataset != task:
        file = evaluation.validation_file
        return HubData("custom", Path(file).name if file else evaluation.dataset)
    return HubData(
        kind="nyu-mll/glue",
        name=f"GLUE {TASKS[task].folder}",
        config=task.replace("-", ""),
        split="validation_matched" if task == "mnli" else "validation",
    )


def model_card(settings: HubSettings, evaluation: Evaluation) -> ModelCard:
    """Make the card of a model from its evaluation."""
    metadata = card_metadata(settings, evaluation)
    return ModelCard(f"---\n{metadata.to_yaml()}\n---\n{card_text(settings, evaluation)}")


def model_name(settings: HubSettings) -> str:
    """Return the model's name on the card: its repository's, or its folder's."""
    return settings.hub_model_id or settings.model_dir.absolute().name


def card_metadata(settings: HubSettings, evaluation: Evaluation) -> ModelCardData:
    """Make what the hub reads of a card."""
    data = hub_data(evaluation)
    datasets = None
    if settings.dataset:
        datasets = [settings.dataset]
    elif not data.is_custom:
        datasets = [data.kind]
    return ModelCardData(
        model_name=model_name(settings),
        base_model=settings.base_model or starting_model(settings.model_dir),
        license=settings.license,
        language=settings.language,
        datasets=datasets,
        library_name="transformers",
        evaluation=evaluation.identity,
        pipeline_tag=PIPELINE,
        tags=["early-exit", read_json(settings.model_dir / "config.json")["model_type"]],
        eval_results=[
            EvalResult(
                task_type=PIPELINE,
                dataset_type=data.kind,
                dataset_name=data.name,
                dataset_config=data.config,
                dataset_split=data.split,
                metric_type=HUB_METRICS.get(name, name),
                metric_name=name,
                metric_value=value,
            )
            for name, value in evaluation.numbers.items()
        ],
        co2_eq_emissions=emissions(settings.model_dir),
    )


def emissions(folder: Path) -> dict[str, Any] | None:
    """Return what the hub shows of a training's emissions; None where nobody measured them."""
    path = folder / EMISSIONS_FILE
    if not path.is_file():
        return None
    _, records = read_records(path)
    kilograms = sum(float(record["emissions"]) for _, record in records)
    return {
        "emissions": 1000 * kilograms,  # grams
        "source": "codecarbon",
        "training_type": "fine-tuning",
    }


def starting_model(folder: Path) -> str | None:
    """Return the hub's name of the model that a training started from; None for a local one."""
    source = str(training_flags(folder).get("model_name_or_path"))
    # Weights from the hub are read out of its cache, …/models--OWNER--NAME/snapshots/…
    match = re.search("models--(.+?)--(.+?)/snapshots", source)
    return f"{match[1]}/{match[2]}" if match else None


def card_text(settings: HubSettings, evaluation: Evaluation) -> str:
    """Write what people read of a card."""
    folder = settings.model_dir
    data_name = hub_data(evaluation).name
    results = markdown_table(
        (f"{data_name}, {evaluation.examples} examples", ""),
        [(name, f"{value:.4f}") for name, value in evaluation.numbers.items()],
    )
    for remark in evaluation.remarks:
        results += f"\n\n**Suspect:** {remark}."
    flags = training_flags(folder)
    shown_flags = [(name, flags[name]) for name in SHOWN_FLAGS if name in flags]
    keys = training_keys(read_json(folder / "config.json"))
    number_keys = [key for key, value in evaluation.rule.items() if isinstance(value, float)]
    return TEXT.format(
        name=model_name(settings),
        results=results,
        picture=f"![Where examples exit]({PICTURE})" if find_file(folder, PICTURE) else "",
        settings=markdown_table(
            ("exit settings, and the training's", ""),
            [*evaluation.rule.items(), *keys.items(), *shown_flags],
        ),
        key=number_keys[0],
    )


def quoted_evaluation(card: Path) -> str | None:
    """Read the identity of the evaluation that a card quotes; None where it does not say."""
    try:
        return (metadata_load(card) or {}).get("evaluation")
    except (ValueError, YAMLError):  # not a card of this command, at least
        return None


def update_card(settings: HubSettings, used: UsedFiles) -> None:
    """Write the card, unless the user has edited it.

    used: the files that the evaluation belongs to.

    Raises UserError where there is no evaluation of the model as it is now, or where an edited card
    quotes an earlier one.
    """
    folder = settings.model_dir
    card = folder / CARD
    results = RunFolder(folder)
    if not card.exists() or results.has_own(CARD):
        text = str(model_card(settings, read_evaluation(folder, used.model_hashes)))
        used.check()
        results.write_text(CARD, text)
        print(f"written: {card}")
        return
    quoted = quoted_evaluation(card)
    if quoted and quoted != read_evaluation(folder, used.model_hashes).identity:
        raise UserError(
            f"{card}, which was edited, has the numbers of an earlier evaluation: rename it, and "
            "give the command again for a new one to copy from"
        )
    print(f"{card} is your own: it is left as it is")
