"""Pre-training on text: the published schedule, the model, its training, and its evaluation."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.optim.lr_scheduler import LambdaLR
from transformers import AlbertConfig, AlbertForPreTraining
from transformers import PreTrainedModel as Model
from transformers import PreTrainedTokenizerBase as Tokenizer

from elbert import AlbertActForPreTraining, UserError, load_tokenizer
from elbert.cpu_packing import packed_copy
from elbert.loading.configs import make_config
from elbert.loading.weights import ACT_NAMES, LoadReport, load_into, read_weights
from elbert_base.families import FAMILIES
from elbert_base.files import file_hash, read_json, weights_hash
from elbert_base.keys import ACT_KEYS, ELBERT_KEYS
from runs.console import markdown_table
from runs.files import RunFolder
from runs.flags import as_dict
from runs.folder import check_finished
from runs.job import check_vocab_size
from runs.provenance import provenance
from training.checkpoints import TrainState, find_start
from training.optimizer import make_optimizer
from training.pretraining.data import PretrainingData, TokenClass, train_tokenizer
from training.pretraining.objective import PreTrainingObjective, means
from training.pretraining.settings import (
    PretrainingModelSettings,
    PretrainingSettings,
    TextScript,
)
from training.trainer import Batch, Sums, Trainer, TrainingLog, add_sums

logger = logging.getLogger(__name__)


class Architecture(NamedTuple):
    """What --model_type names."""

    model_class: Any
    foreign_keys: set[str]  # of a config.json, that are of another mode
    tensor_names: Mapping[str, str]  # patterns of a checkpoint's names, and what takes their place


ARCHITECTURES = {
    "albert": Architecture(AlbertForPreTraining, {*ELBERT_KEYS, *ACT_KEYS}, {}),
    "albert_act": Architecture(AlbertActForPreTraining, {*ELBERT_KEYS}, ACT_NAMES),
}
# What the weights of --model_name_or_path may lack: their names begin so.
NEW_PARTS = tuple(
    "albert.pooler. albert.encoder.albert_layer.act. predictions. sop_classifier.".split()
)
# The published learning rate at length 512, as a share of that at length 128.
LONG_RATE = 2.75e-4 / 1.76e-3
# The published table's rows: every `TokenClass` but padding. Here every token is of one class; the
# published evaluation counted whatever is not [MASK] as unmasked, and every changed token, [MASK]
# too, as random.
ROWS = "All unmasked tokens,[MASK/MASK],[MASK/random],[MASK/original],[CLS],[SEP]".split(",")


class Phase(NamedTuple):
    """A part of the training with its own length of examples and its own learning rate."""

    steps: int
    max_seq_length: int
    batch_size: int  # examples of a batch, over all processes
    accumulation: int  # batches of a step
    rate: float  # peak learning rate as a share of --learning_rate
    warmup_steps: int


def phases_of(settings: PretrainingSettings, processes: int) -> list[Phase]:
    """Make the published two: most steps with short examples, the rest with long ones.

    Long examples come in batches of about as many pieces, and in steps of as many examples.
    """
    flags, short = settings.training, settings.text.max_seq_length
    long, accumulation = flags.long_seq_length, flags.gradient_accumulation_steps
    batch = flags.per_gpu_train_batch_size * processes
    long_steps, long_batch = round(flags.max_steps * flags.long_fraction), batch * short // long
    if long_steps and long_batch < processes:
        raise UserError(
            f"--per_gpu_train_batch_size {flags.per_gpu_train_batch_size} is not one example at "
            f"length {long}: allowed is at least {-(-long // short)}, or --long_fraction 0"
        )
    long_accumulation = -(-batch * accumulation // max(1, long_batch))
    long_warmup = int(flags.warmup_steps * flags.long_fraction)
    both = (
        Phase(flags.max_steps - long_steps, short, batch, accumulation, 1.0, flags.warmup_steps),
        Phase(long_steps, long, long_batch, long_accumulation, LONG_RATE, long_warmup),
    )
    return [phase for phase in both if phase.steps > 0]


def rate_at(phases: list[Phase], step: int) -> float:
    """Return the share of --learning_rate at `step` (0-based): warm-up and decay in each phase."""
    for phase in phases:
        if step < phase.steps:
            break
        step -= phase.steps
    if step < phase.warmup_steps:
        return phase.rate * step / phase.warmup_steps
    left = (phase.steps - step) / max(1, phase.steps - phase.warmup_steps)
    return phase.rate * max(0.0, left)


def read_config(flags: PretrainingModelSettings, source: str | None) -> AlbertConfig:
    """Read a config.json or its folder's, without what belongs to another --model_type."""
    if not source:
        raise UserError("--config_name is missing, e.g. configs/act_tiny.json")
    path = Path(source, "config.json") if Path(source).is_dir() else Path(source)
    written = read_json(path)
    if written.get("model_type") in FAMILIES:
        raise UserError(
            f"{source} is of model_type {written['model_type']}, with a layer of its own at every "
            "depth: share_layers.py makes an ALBERT of a BERT"
        )
    architecture = ARCHITECTURES[flags.model_type]
    foreign = architecture.foreign_keys
    values = {name: value for name, value in written.items() if name not in foreign}
    if flags.tau is not None:
        if "tau" in foreign:
            raise UserError("--tau is of --model_type albert_act; the dense model ponders nothing")
        values["tau"] = flags.tau
    return make_config(path, values, architecture.model_class.config_class)


def make_tokenizer(settings: PretrainingSettings) -> None:
    """--train_tokenizer: spiece.model in --output_dir, and no other tokenizer beside it."""
    flags, text, run, *_ = settings
    output = Path(run.output_dir)
    if run.resume_from_checkpoint and (output / "spiece.model").exists():
        return  # of the run that goes on
    config = flags.config_name or flags.model_name_or_path
    size = flags.vocab_size or read_config(flags, config).vocab_size
    train_tokenizer(text.train_files, text.split_sentences, size, run.do_lower_case, output)
    for stale in ("tokenizer.json", "tokenizer_config.json"):  # would be taken in its place
        (output / stale).unlink(missing_ok=True)


def load_weights(model: Model, source: str) -> LoadReport:
    """Copy an ALBERT's or an ACT model's weights into `model`; its heads may be new."""
    config: Any = model.config
    names = ARCHITECTURES[config.model_type].tensor_names
    return load_into(model, read_weights(source, names), source, NEW_PARTS)


def make_model(
    settings: PretrainingSettings, config: str | None, pieces: str
) -> tuple[Any, Tokenizer]:
    """Make a model with new weights, and load the tokenizer in the folder `pieces`.

    Raises UserError where pieces or places have no embeddings.
    """
    model_config = read_config(settings.model, config)
    tokenizer = load_tokenizer(pieces, settings.run.do_lower_case)
    check_vocab_size(tokenizer, pieces, model_config)
    flags = {"--max_seq_length": settings.text.max_seq_length}
    if settings.run.do_train and settings.training.long_fraction > 0:
        flags["--long_seq_length"] = settings.training.long_seq_length
    for flag, length in flags.items():
        longest = model_config.max_position_embeddings
        if length > longest:
            raise UserError(f"{flag} {length}: the model has max_position_embeddings = {longest}")
    return ARCHITECTURES[settings.model.model_type].model_class(model_config), tokenizer


def trained_model(settings: PretrainingSettings, source: str) -> tuple[Any, Tokenizer]:
    """Load the model in `source`, and its tokenizer; UserError where they are not as asked for."""
    flags = settings.model
    check_finished(source)
    pieces = flags.tokenizer_name or source
    if source == settings.run.output_dir:
        pieces = source
    model, tokenizer = make_model(settings, source, pieces)
    report = load_weights(model, source)
    parameters = {name for name, _ in model.named_parameters()}  # without those tied to others
    if new := parameters.intersection(report.initialised):
        raise UserError(f"{source}: no weights for {min(new)}; --do_train trains them")
    return model, tokenizer


def pretrain(settings: PretrainingSettings, accelerator: Accelerator) -> None:
    """Train, or go on with a training to the last bit; nothing where it is finished.

    Minimises MLM + SOP + τ · ponder cost; the trained model ends in --output_dir.
    """
    flags, run = settings.model, settings.run
    source = flags.model_name_or_path
    is_finished, checkpoint = find_start(settings, accelerator.num_processes, source or "")
    if is_finished:
        return
    given = None if flags.train_tokenizer else flags.tokenizer_name or source
    config, pieces = flags.config_name or source, given or run.output_dir
    model, tokenizer = make_model(settings, config, pieces)
    if source:
        logger.info("\n".join(load_weights(model, source).lines()))
    phases = phases_of(settings, accelerator.num_processes)
    logger.info("***** Running training *****")
    data = []
    for phase in phases:
        logger.info("  %s", phase)
        own_text = replace(settings.text, max_seq_length=phase.max_seq_length)
        data.append(PretrainingData(own_text, run, tokenizer, phase.batch_size))
    optimizer = make_optimizer(model, settings.training)
    schedule = LambdaLR(optimizer, lambda step: rate_at(phases, step))
    objective = PreTrainingObjective(model, len(TokenClass))
    state = TrainState(model, tokenizer, optimizer, schedule, objective)
    trainer = Trainer(accelerator, state, settings, data[0].fingerprint)
    trainer.begin(checkpoint)

    def shown(sums: Sums) -> dict[str, float]:
        updates = {f"updates/{x.strip('[]')}": mean for x, mean in mean_updates(sums).items()}
        return means(sums, objective.tau) | updates

    total, end = sum(phase.steps for phase in phases), 0
    with TrainingLog(trainer, total, lambda out: out.sums, shown) as log:
        for phase, examples in zip(phases, data, strict=True):
            if state.step == end:  # the phase begins: with its own first batch
                state.epoch = state.batch = 0
            end += phase.steps
            accelerator.gradient_accumulation_steps = phase.accumulation
            accelerator.step = 0  # the batches counted towards a step
            trainer.fit(partial(pretraining_batches, accelerator, examples), end, log.step)
        trainer.finish()


def pretraining_batches(
    accelerator: Accelerator, data: PretrainingData, epoch: int, first: int
) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on.

    Each carries what its whole global batch has to predict, which the losses are averaged over.
    """
    shard = accelerator.process_index, accelerator.num_processes
    for inputs in data.training_batches(epoch, first, shard):
        inputs = send_to_device(inputs, accelerator.device)
        counts = {
            "predictions": (inputs["labels"] != -100).sum(),
            "pairs": (inputs["sentence_order_label"] != -100).sum(),
            "examples": torch.tensor(len(inputs["labels"]), device=accelerator.device),
        }
        yield Batch({**inputs, **accelerator.reduce(counts, "sum")}, share=1.0)


def mean_updates(sums: Sums) -> dict[str, float]:
    """Compute the mean updates of a token by the published table's rows; {} for a dense model."""
    if "updates" not in sums:
        return {}
    updates, tokens = (sums[name].cpu().double() for name in ("updates", "tokens"))
    rows = zip(ROWS, updates / tokens, strict=True)
    found = {"All tokens": updates.sum() / tokens.sum(), **dict(rows)}
    return {name: mean.item() for name, mean in found.items() if not mean.isnan()}


@torch.inference_mode()
def measure(accelerator: Accelerator, model: Any, data: PretrainingData) -> dict[str, Any]:
    """Find losses, accuracies and mean updates of `model` on a text."""
    fast = packed_copy(model.to(accelerator.device).eval())
    objective = PreTrainingObjective(fast, len(TokenClass))
    total: Sums = {}
    shard = accelerator.process_index, accelerator.num_processes
    for batch in data.evaluation_batches(shard):
        total = add_sums(total, objective(**send_to_device(batch, accelerator.device)).sums)
    total = accelerator.reduce(total, "sum")
    return {
        **means(total, objective.tau),
        "updates": mean_updates(total),
        "max_updates": model.config.num_hidden_layers,
        "tau": objective.tau,
        "examples": int(total["examples"]),
    }


def evaluate(settings: PretrainingSettings, accelerator: Accelerator) -> None:
    """Measure on --eval_file; print it with the published table, write eval_results.json.

    The model is that in --output_dir or, where this command trains none, of --model_name_or_path.
    """
    flags, text, run, _, evaluation = settings
    source = (not run.do_train and flags.model_name_or_path) or run.output_dir
    model, tokenizer = trained_model(settings, source)
    text = replace(text, train_files=[evaluation.text_file])
    size = evaluation.per_gpu_eval_batch_size * accelerator.num_processes
    data = PretrainingData(text, run, tokenizer, size)  # masked as in training
    summary = measure(accelerator, model, data)
    if not accelerator.is_main_process:
        return
    print("***** Eval results *****")
    for name in ("loss", "mlm_loss", "mlm_acc", "sop_loss", "sop_acc", "ponder_cost"):
        if name in summary:
            print(f"{name} = {summary[name]:.4f}")
    if summary["updates"]:
        rows = [("τ", f"{summary['tau']:g}"), ("Max iterations", summary["max_updates"])]
        for name in ("mlm", "sop"):
            if f"{name}_acc" in summary:
                rows.append((f"{name} (Acc.)", f"{100 * summary[f'{name}_acc']:.1f}"))
        rows += [(row, f"{value:.2f}") for row, value in summary["updates"].items()]
        print(f"\n{markdown_table(('', 'this model'), rows)}")
    write_results(settings, source, summary)


def write_results(settings: TextScript, source: str, summary: dict[str, Any]) -> None:
    """Write what a model, in `source`, is on --eval_file: eval_results.json in --output_dir."""
    hashes = {"weights": weights_hash(source), "data": file_hash(settings.evaluation.text_file)}
    summary = {**summary, "provenance": provenance(as_dict(*settings), **hashes).as_json()}
    RunFolder(settings.run.output_dir).write_json("eval_results.json", summary)
