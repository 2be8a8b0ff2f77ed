"""Upload a trained model to the Hugging Face hub, with a model card made from its evaluation.

    python ./push_to_hub.py --model_dir out/albert_base/RTE --hub_model_id me/elbert-rte

The card is README.md in --model_dir; a card that you have edited stays as it is. Without
--hub_model_id, the command only writes the card. With it, the command sends weights, configuration,
exit_config.json, tokenizer, card and exits.png, without paths and flags of this machine. Sign in
first, by `hf auth login`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData, metadata_load
from yaml import YAMLError

from elbert_base.errors import UserError
from elbert_base.exit_settings import EXIT_FILE, overriding_file, read_exit_file, resolve
from elbert_base.files import TOKENIZER_FILES, find_file, read_json, resolve_within, weight_files
from elbert_base.keys import keys_of
from glue.tables import read_records
from glue.tasks import TASKS
from runs.console import markdown_table
from runs.files import as_json
from runs.fingerprint import differences, fingerprint
from runs.flags import option, parse
from runs.folder import RunFolder
from runs.processes import run_script
from runs.provenance import HASHES, PASSWORD, training_flags
from runs.settings import EMISSIONS_FILE
from runs.used_files import UsedFiles

CARD = "README.md"
PICTURE = "exits.png"
# The files that are sent, those of them that are there, and the weights. No other file is.
SENT_FILES = (
    "config.json",
    EXIT_FILE,
    *TOKENIZER_FILES,
    CARD,
    PICTURE,
)
# Keys of these files that are about the machine of the training.
PRIVATE_KEYS = ("_name_or_path", "name_or_path", "my_out_dir", "command", "flags")
# A path from a root, with two names at least, or from a home or a drive; or a URL with a password.
PRIVATE_VALUE = rf"^(/[^/]+/|~|[A-Za-z]:[\\/]|\\\\|file:)|{PASSWORD}"
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


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """The model and its repository."""

    model_dir: Path = option(..., "folder of the trained and evaluated model")
    hub_model_id: str | None = option(
        None, "repository on the hub, e.g. me/rte; default: only write the card"
    )
    license: str | None = option(None, "licence on the card, e.g. apache-2.0")
    language: str | None = option(None, "language of the texts, e.g. en")
    dataset: str | None = option(
        None, "name of the training data on the hub; default: that of GLUE, for its tasks"
    )
    base_model: str | None = option(
        None, "name of the starting model on the hub; default: that of the training"
    )
    hub_private_repo: bool = option(False, "make a new repository private")


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


# The evaluation.


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


# The card.


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
    number_keys = [key for key, value in evaluation.rule.items() if isinstance(value, float)]
    return TEXT.format(
        name=model_name(settings),
        results=results,
        picture=f"![Where examples exit]({PICTURE})" if find_file(folder, PICTURE) else "",
        settings=markdown_table(
            ("exit settings, and the training's", ""), [*evaluation.rule.items(), *shown_flags]
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


# Sending.


def files_to_send(folder: Path) -> dict[str, Path]:
    """Find the files to send, by the names that they get on the hub.

    The exit keys of whatever file config.json names are sent as exit_config.json.

    Raises UserError for a link that leads out of the folder.
    """
    files = {name: folder / name for name in SENT_FILES if (folder / name).exists()}
    exit_file = overriding_file(read_json(folder / "config.json"), folder)
    if exit_file:
        files[EXIT_FILE] = exit_file
    files |= {path.name: path for path in weight_files(folder)}
    for path in files.values():
        if not resolve_within(folder, path.absolute()):
            raise UserError(f"{path} is a link that leads out of {folder}: copy its file there")
    return files


def public_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file without what is private: keys, local paths and passwords."""
    public = {}
    for key, value in values.items():
        is_private_text = isinstance(value, str) and re.search(PRIVATE_VALUE, value)
        if key in PRIVATE_KEYS or is_private_text:
            continue
        if key == "provenance" and isinstance(value, Mapping):
            value = public_json(value)
        public[key] = value
    return public


def put_together(folder: Path, target: Path) -> None:
    """Put into `target` what is sent of a model's folder, and nothing that is private."""
    for name, path in files_to_send(folder).items():
        if name in ("config.json", EXIT_FILE, "tokenizer_config.json"):
            values = public_json(read_exit_file(path) if name == EXIT_FILE else read_json(path))
            if "exit_config_path" in values:
                values["exit_config_path"] = EXIT_FILE
            (target / name).write_text(as_json(values), encoding="utf-8")
        else:
            (target / name).symlink_to(path.resolve())


def send(folder: Path, repository: str, is_private: bool) -> None:
    """Send a model's folder to its repository, which is made where there is none.

    Raises UserError where the hub does not take it.
    """
    with TemporaryDirectory() as name:
        target = Path(name)
        put_together(folder, target)  # refuses what must not leave before the hub is asked
        hub = HfApi()
        names = sorted(path.name for path in target.iterdir())
        try:
            hub.create_repo(repository, private=is_private, exist_ok=True)
            url = hub.upload_folder(repo_id=repository, folder_path=target, allow_patterns=names)
        except Exception as error:  # of the hub, or of the HTTP client that it happens to use
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{repository}: the upload failed ({reason})") from error
    print(f"sent: {url}")
    print(f"files: {', '.join(names)}")


def main() -> None:
    (settings,) = parse([HubSettings], __doc__)
    folder = settings.model_dir
    used = UsedFiles(folder, folder / "eval_results.json")
    update_card(settings, used)
    if settings.hub_model_id:
        used.check()
        send(folder, settings.hub_model_id, settings.hub_private_repo)


if __name__ == "__main__":
    run_script(main)
