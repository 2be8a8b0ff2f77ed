"""share_layers.py's training, and the evaluation of a student."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel

from modeling.encoder import tie_layers
from modeling.errors import UserError
from modeling.files import weight_files
from modeling.loading.weights import TensorDict, load_into, read_weights
from runs.console import markdown_table
from runs.fingerprint import file_fingerprint, fingerprint
from runs.flags import as_dict
from runs.output_dir import check_finished
from training.checkpoints import TrainState, find_start, input_hashes, run_fingerprint, was_finished
from training.layer_sharing.student import new_student
from training.layer_sharing.teacher import StateTeacher, load_teacher
from training.log import Sums, TrainingLog, add_sums
from training.optimizer import make_optimizer, make_schedule
from training.pretraining.data import PretrainingData
from training.pretraining.objective import ObjectiveOutput
from training.pretraining.run import sums_of_output, write_results
from training.pretraining.settings import SharingSettings
from training.trainer import Batch, Trainer

VARIANCE_BATCHES = 32  # of the training text, on which the teacher's variance is measured


class DistillationLoss(nn.Module):
    """Weighted mean over passes of the share of the teacher's variance left unexplained.

    Args:
        model: the student.
        variances: (N + 1,), of the teacher's states that states 0 … N follow, summed over features.
        weights: (N + 1,), of these states in the loss; they sum to 1.
    """

    variances: Tensor
    weights: Tensor

    def __init__(self, model: AlbertModel, variances: Tensor, weights: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("variances", variances, persistent=False)
        self.register_buffer("weights", weights, persistent=False)

    def train(self, mode: bool = True) -> "DistillationLoss":
        """Keep the student in eval mode, without dropout, as its teacher."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        targets: Tensor,
        attention_mask: Tensor | None = None,
        **labels: Tensor,
    ) -> ObjectiveOutput:
        """Compute the loss of a batch.

        Its sums are the squared `errors` (N + 1,) of states 0 … N and the number of real `tokens`.

        Args:
            input_ids, token_type_ids, attention_mask: (batch, length) int64.
            targets: (N + 1, batch, length, hidden), the teacher's states.
            labels: what else is in a batch of text; it is not used.
        """
        states = self.model(
            input_ids, attention_mask, token_type_ids, output_hidden_states=True
        ).hidden_states
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        state_errors = []
        for state, target in zip(states, targets, strict=True):
            token_errors = (state.float() - target).square().sum(-1)  # (batch, length)
            state_errors.append((token_errors * real).sum())
        errors = torch.stack(state_errors)
        tokens = real.sum()
        loss = (self.weights * errors / self.variances).sum() / tokens
        return ObjectiveOutput(loss, {"errors": errors.detach(), "tokens": tokens})

    def shares(self, sums: Sums) -> list[float]:
        """Compute the share of the teacher's variance that states 0 … N leave unexplained."""
        return (sums["errors"] / sums["tokens"] / self.variances).tolist()


class UnmaskedText(PretrainingData):
    """A text as batches of as many pieces as `batch_size` full examples have; none is masked."""

    def size(self, longest: int) -> int:
        return max(1, self.batch_size * self.text.max_seq_length // longest)


# Training.


def train_student(settings: SharingSettings, accelerator: Accelerator) -> None:
    """Train, or resume a training to the last bit; do nothing where it is finished.

    Follows the teacher on --train_files. The student ends in --output_dir.
    """
    flags = settings.student
    run = settings.run
    training = settings.training
    processes = accelerator.num_processes
    sources = [flags.model_name_or_path]
    if flags.initial_student:
        sources.append(flags.initial_student)
    inputs = input_hashes({"training text": settings.text.train_files, "weights": sources})
    if was_finished(run, run_fingerprint(settings, processes, inputs)):
        return
    checkpoint = find_start(run, sources)
    teacher, tokenizer = load_teacher(settings, flags.num_hidden_layers, accelerator.device)
    student = new_student(flags, teacher)
    text = UnmaskedText(
        settings.text,
        tokenizer,
        training.per_gpu_train_batch_size * processes,
        seed=run.seed,
        output_dir=run.output_dir,
    )
    files = [path for source in sources for path in weight_files(source)]
    data_fingerprint = fingerprint(text.fingerprint, [file_fingerprint(path) for path in files])
    objective = DistillationLoss(
        student,
        variances=teacher.variances(islice(text.training_batches(0, 0), VARIANCE_BATCHES)),
        weights=state_weights(teacher.passes, flags.last_pass_weight),
    )
    optimizer = make_optimizer(student, training)
    total = training.max_steps
    state = TrainState(
        model=student,
        tokenizer=tokenizer,
        optimizer=optimizer,
        schedule=make_schedule(optimizer, training.warmup_steps, total),
        objective=objective,
    )
    trainer = Trainer(
        accelerator,
        state,
        run=run,
        training=training,
        fingerprint=run_fingerprint(settings, processes, inputs, data_fingerprint, student.config),
        flags=as_dict(*settings),
    )
    trainer.begin(checkpoint)

    def log_shares(sums: Sums) -> dict[str, float]:
        return {f"pass/{number}": share for number, share in enumerate(objective.shares(sums))}

    batches = partial(student_batches, accelerator, text, teacher)
    with TrainingLog(trainer, total, sums_of=sums_of_output, means=log_shares) as log:
        accumulation = training.gradient_accumulation_steps
        trainer.fit(batches, total, log.step, accumulation=accumulation)
        trainer.finish()


def state_weights(passes: int, last_pass_weight: float) -> Tensor:
    """Return the weights of states 0 … N in the loss, (N + 1,), which sum to 1."""
    weights = torch.ones(passes + 1)
    weights[0] = 0  # of frozen embeddings
    weights[-1] = last_pass_weight
    return weights / weights.sum()


def student_batches(
    accelerator: Accelerator, text: UnmaskedText, teacher: StateTeacher, epoch: int, first: int
) -> Iterator[Batch]:
    """Yield this process's part of the global batches of an epoch, from number `first` on.

    Each carries its targets, the teacher's states.
    """
    shard = (accelerator.process_index, accelerator.num_processes)
    for batch in text.training_batches(epoch, first, shard):
        inputs = cast(TensorDict, send_to_device(batch, accelerator.device))
        tokens = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).sum()
        share = tokens / cast(Tensor, accelerator.reduce(tokens, "sum"))
        yield Batch({**inputs, "targets": teacher.states(inputs)}, share)


# Evaluation.


def evaluate_student(settings: SharingSettings, device: torch.device) -> None:
    """Measure the student in --output_dir on --eval_file; print it, write eval_results.json.

    What is measured is each pass's share of the teacher's variance that is left unexplained.
    """
    run, evaluation = settings.run, settings.evaluation
    check_finished(run.output_dir)
    student = load_student(run.output_dir)
    nn.Module.to(student, device)  # HF's own is not annotated
    teacher, tokenizer = load_teacher(settings, student.config.num_hidden_layers, device)
    if word_embeddings(student).shape != word_embeddings(teacher.model.albert).shape:
        raise UserError(
            f"{run.output_dir} did not follow {settings.student.model_name_or_path}: give the "
            "teacher of this student with --model_name_or_path"
        )
    text = UnmaskedText(
        replace(settings.text, train_files=[evaluation.text_file]),
        tokenizer,
        evaluation.per_gpu_eval_batch_size,
        seed=run.seed,
        output_dir=run.output_dir,
    )
    shares, tokens = measure(student, teacher, text, device)
    embeddings, *passes = shares
    print(f"What is left unexplained of the teacher's variance, {tokens} tokens:")
    rows: list[tuple[object, ...]] = [("embeddings", 0, f"{embeddings:.4f}")]
    for number, share in enumerate(passes, 1):
        rows.append((number, teacher.followed[number], f"{share:.4f}"))
    print(markdown_table(("pass", "teacher's layer", "share"), rows))
    summary = {
        "passes": passes,
        "embeddings": embeddings,
        "tokens": tokens,
        "followed_layers": teacher.followed[1:],
    }
    write_results(settings, run.output_dir, summary)


def load_student(folder: str) -> AlbertModel:
    """Load a trained student."""
    student = AlbertModel(AlbertConfig.from_pretrained(folder))
    tie_layers(student)
    load_into(student, read_weights(folder, {r"^albert\.": ""}), folder, new_parts=())
    return student


def word_embeddings(model: Any) -> Tensor:
    """Return an ALBERT's word embeddings, (vocabulary, embedding)."""
    return model.embeddings.word_embeddings.weight


@torch.no_grad()
def measure(
    student: AlbertModel, teacher: StateTeacher, text: UnmaskedText, device: torch.device
) -> tuple[list[float], int]:
    """Compute the share that states 0 … N of a student leave unexplained on a text.

    Returns the shares, N + 1 of them, and the number of tokens that they are of.
    """
    whole_text = (0, 1)  # one process alone
    variances = teacher.variances(text.evaluation_batches(whole_text))
    # The loss is not used, and so the weights are not.
    objective = DistillationLoss(student, variances, weights=torch.ones_like(variances)).eval()
    sums: Sums = {}
    for batch in text.evaluation_batches(whole_text):
        inputs = cast(TensorDict, send_to_device(batch, device))
        output = objective(**inputs, targets=teacher.states(inputs))
        sums = add_sums(sums, output.sums)
    return objective.shares(sums), int(sums["tokens"])
