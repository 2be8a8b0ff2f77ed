"""Pre-training on text: the training, and its evaluation with the published table."""

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerBase

from modeling.cpu_packing import packed_copy
from modeling.files import file_hash, model_hashes
from modeling.loading.weights import TensorDict
from runs.console import markdown_table
from runs.flags import as_dict
from runs.folder import RunFolder
from runs.provenance import provenance
from runs.settings import RunSettings
from training.checkpoints import TrainState, find_start, input_hashes, run_fingerprint, was_finished
from training.log import Sums, TrainingLog, add_sums
from training.optimizer import make_optimizer
from training.pretraining.data import PretrainingData
from training.pretraining.masking import NO_LABEL, TokenClass
from training.pretraining.model import load_trained, load_weights, new_model
from training.pretraining.objective import PreTrainingObjective, means
from training.pretraining.schedule import Phase, phases_of, rate_at
from training.pretraining.settings import PretrainingSettings, TextScript, TextSettings
from training.trainer import Batch, Trainer

logger = logging.getLogger(__name__)

# The published table's rows: every `TokenClass` but padding. Here every token is of one class.
ROWS = (
    "All unmasked tokens",
    "[MASK/MASK]",
    "[MASK/random]",
    "[MASK/original]",
    "[CLS]",
    "[SEP]",
)
# Two rows as the published evaluation counts them, by the classes that it puts together: whatever
# is not [MASK] as unmasked, and every changed token, [MASK] too, as random.
PUBLISHED_ROWS = {
    "All unmasked tokens": [row for row in ROWS if row != "[MASK/MASK]"],
    "[MASK/random]": ["[MASK/MASK]", "[MASK/random]"],
}


def pretrain(settings: PretrainingSettings, accelerator: Accelerator) -> None:
    """Train, or resume a training to the last bit; do nothing where it is finished.

    Minimises MLM + SOP + τ · ponder cost. The trained model ends in --output_dir.
    """
    model_flags = settings.model
    run = settings.run
    training = settings.training
    processes = accelerator.num_processes
    weights_source = model_flags.model_name_or_path
    inputs = input_hashes(
        {"training text": settings.text.train_files, "starting weights": [weights_source]}
    )
    if was_finished(run, run_fingerprint(settings, processes, inputs)):
        return
    checkpoint = find_start(run, [weights_source] if weights_source else [])
    tokenizer_source = model_flags.tokenizer_name or weights_source or run.output_dir
    if model_flags.train_tokenizer:
        tokenizer_source = run.output_dir
    model, tokenizer = new_model(
        settings, model_flags.config_name or weights_source, tokenizer_source
    )
    if weights_source:
        logger.info("\n".join(load_weights(model, weights_source).lines()))
    phases = phases_of(training, settings.text.max_seq_length, processes)
    logger.info("***** Running training *****")
    data = [phase_data(phase, settings.text, tokenizer, run) for phase in phases]
    optimizer = make_optimizer(model, training)
    objective = PreTrainingObjective(model, len(TokenClass))
    state = TrainState(
        model=model,
        tokenizer=tokenizer,
        optimizer=optimizer,
        schedule=LambdaLR(optimizer, lambda step: rate_at(phases, step)),
        objective=objective,
    )
    trainer = Trainer(
        accelerator,
        state,
        run=run,
        training=training,
        fingerprint=run_fingerprint(settings, processes, inputs, data[0].fingerprint, model.config),
        flags=as_dict(*settings),
    )
    trainer.begin(checkpoint)
    total = sum(phase.steps for phase in phases)
    phase_end = 0
    log_means = partial(means_for_log, tau=objective.tau)
    with TrainingLog(trainer, total, sums_of=sums_of_output, means=log_means) as log:
        for phase, examples in zip(phases, data, strict=True):
            if state.step == phase_end:  # the phase begins: with its own first batch
                state.epoch = 0
                state.batch = 0
            phase_end += phase.steps
            batches = partial(pretraining_batches, accelerator, examples)
            trainer.fit(batches, phase_end, log.step, accumulation=phase.accumulation)
        trainer.finish()


def phase_data(
    phase: Phase, text: TextSettings, tokenizer: PreTrainedTokenizerBase, run: RunSettings
) -> PretrainingData:
    """Make the batches of a phase; log what it is."""
    logger.info("  %s", phase)
    return PretrainingData(
        replace(text, max_seq_length=phase.max_seq_length),
        tokenizer,
        phase.batch_size,
        seed=run.seed,
        output_dir=run.output_dir,
    )


def sums_of_output(output: Any) -> Sums:
    """Pick the sums of an objective's output, for the log."""
    return output.sums


def means_for_log(sums: Sums, tau: float) -> dict[str, float]:
    """Compute what an entry of the log says, from the sums over some batches."""
    values = means(sums, tau)
    for row, mean in mean_updates(sums).items():
        values[f"updates/{row.strip('[]')}"] = mean
    return values


def pretraining_batches(
    accelerator: Accelerator, data: PretrainingData, epoch: int, first: int
) -> Iterator[Batch]:
    """Yield this process's part of the global batches of an epoch, from number `first` on.

    Each carries what its whole global batch has to predict, which the losses are averaged over.
    """
    shard = (accelerator.process_index, accelerator.num_processes)
    for inputs in data.training_batches(epoch, first, shard):
        inputs = cast(TensorDict, send_to_device(inputs, accelerator.device))
        counts = {
            "predictions": (inputs["labels"] != NO_LABEL).sum(),
            "pairs": (inputs["sentence_order_label"] != NO_LABEL).sum(),
            "examples": torch.tensor(len(inputs["labels"]), device=accelerator.device),
        }
        global_counts = accelerator.reduce(counts, "sum")
        yield Batch({**inputs, **global_counts}, share=1.0)


# Evaluation.


@dataclass(frozen=True)
class PretrainingSummary:
    """What a model is on a text."""

    losses: dict[str, float]  # see `means`
    updates: dict[str, float]  # see `mean_updates`
    updates_as_published: dict[str, float]  # see `published_means`
    max_updates: int  # of a token
    tau: float
    examples: int

    def as_json(self) -> dict[str, Any]:
        """Return what eval_results.json has of it."""
        values = asdict(self)
        losses = values.pop("losses")
        return {**losses, **values}

    def lines(self) -> list[str]:
        """Write the lines for the console, and for an adaptive model the published table."""
        losses = self.losses
        names = ("loss", "mlm_loss", "mlm_acc", "sop_loss", "sop_acc", "ponder_cost")
        lines = [f"{name} = {losses[name]:.4f}" for name in names if name in losses]
        if self.updates:
            rows: list[tuple[str, object]] = [
                ("τ", f"{self.tau:g}"),
                ("Max iterations", self.max_updates),
            ]
            for name in ("mlm", "sop"):
                if f"{name}_acc" in losses:
                    rows.append((f"{name} (Acc.)", f"{100 * losses[f'{name}_acc']:.1f}"))
            rows += [(row, f"{mean:.2f}") for row, mean in self.updates.items()]
            lines += ["", markdown_table(("", "this model"), rows)]
        return lines


def evaluate(settings: PretrainingSettings, accelerator: Accelerator) -> None:
    """Measure on --eval_file; print it with the published table, write eval_results.json.

    The model is that in --output_dir or, where this command trains none, of --model_name_or_path.
    """
    run, evaluation = settings.run, settings.evaluation
    source = run.output_dir
    if settings.model.model_name_or_path and not run.do_train:
        source = settings.model.model_name_or_path
    model, tokenizer = load_trained(settings, source)
    data = PretrainingData(
        replace(settings.text, train_files=[evaluation.text_file]),  # masked as in training
        tokenizer,
        evaluation.per_gpu_eval_batch_size * accelerator.num_processes,
        seed=run.seed,
        output_dir=run.output_dir,
    )
    summary = measure(accelerator, model, data)
    if accelerator.is_main_process:
        print("***** Eval results *****")
        print("\n".join(summary.lines()))
        write_results(settings, source, summary.as_json())


@torch.inference_mode()
def measure(accelerator: Accelerator, model: Any, data: PretrainingData) -> PretrainingSummary:
    """Compute losses, accuracies and mean updates of `model` on a text, over all processes."""
    packed_model = packed_copy(model.to(accelerator.device).eval())
    objective = PreTrainingObjective(packed_model, len(TokenClass))
    own_sums: Sums = {}
    shard = (accelerator.process_index, accelerator.num_processes)
    for batch in data.evaluation_batches(shard):
        batch = cast(TensorDict, send_to_device(batch, accelerator.device))
        own_sums = add_sums(own_sums, objective(**batch).sums)
    sums = cast(Sums, accelerator.reduce(own_sums, "sum"))
    return PretrainingSummary(
        losses=means(sums, objective.tau),
        updates=mean_updates(sums),
        updates_as_published=published_means(sums),
        max_updates=model.config.num_hidden_layers,
        tau=objective.tau,
        examples=int(sums["examples"]),
    )


def mean_updates(sums: Sums) -> dict[str, float]:
    """Compute the mean updates of a token by the published table's rows; {} for a dense model.

    sums: the `updates` and the `tokens` of every class but padding, (classes − 1,).
    """
    if "updates" not in sums:
        return {}
    updates = sums["updates"].cpu().double()
    tokens = sums["tokens"].cpu().double()
    means_by_row = {"All tokens": updates.sum() / tokens.sum()}
    means_by_row |= dict(zip(ROWS, updates / tokens, strict=True))
    # NaN: of a class without a token.
    return {row: mean.item() for row, mean in means_by_row.items() if not mean.isnan()}


def published_means(sums: Sums) -> dict[str, float]:
    """Compute the rows of `mean_updates` that the published evaluation counts otherwise; see it."""
    if "updates" not in sums:
        return {}
    updates = sums["updates"].cpu().double()
    tokens = sums["tokens"].cpu().double()
    means_by_row = {}
    for row, classes in PUBLISHED_ROWS.items():
        numbers = [ROWS.index(name) for name in classes]
        count = tokens[numbers].sum()
        if count > 0:
            means_by_row[row] = float(updates[numbers].sum() / count)
    return means_by_row


def write_results(settings: TextScript, source: str, summary: dict[str, Any]) -> None:
    """Write what the model in `source` is on --eval_file: eval_results.json in --output_dir."""
    origin = provenance(
        as_dict(*settings),
        model_hashes(source),
        data=file_hash(settings.evaluation.text_file),
    )
    report = {**summary, "provenance": origin.as_json()}
    RunFolder(settings.run.output_dir).write_json("eval_results.json", report)
