"""A BERT's layers as one shared ALBERT layer that follows the BERT's states on plain text.

The student applies one layer N times. Its state after pass k is drawn to the teacher's state after
layer round(k·L/N), by the share of the teacher's variance that it leaves unexplained. The idea is
that of recursive transformers retrofitted from ordinary ones (Bae et al. 2024, "Relaxed Recursive
Transformers"); the targets are hidden states, as in TinyBERT (Jiao et al. 2020).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn
from torch.nn import functional as F
from transformers import AlbertConfig, AlbertModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from elbert.albert import attention_mask_of, share_matrices
from elbert.cpu_packing import packed_copy
from elbert.depth import layer_states
from elbert.exits.model import ElbertForSequenceClassification
from elbert.loading.tokenizers import load_tokenizer
from elbert.loading.weights import Tensors, load_into, load_model, read_weights
from elbert_base.errors import UserError
from elbert_base.files import weight_file
from runs.console import markdown_table
from runs.files import file_fingerprint, fingerprint
from runs.folder import check_finished
from training.checkpoints import TrainState, find_start
from training.optimizer import make_optimizer, make_schedule
from training.pretraining.data import PretrainingData
from training.pretraining.objective import ObjectiveOutput
from training.pretraining.run import write_results
from training.pretraining.settings import SharingSettings, StudentSettings
from training.trainer import Batch, Sums, Trainer, TrainingLog, add_sums

LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
TEACHERS = ("embeddings", "encoder.embedding_hidden_mapping_in", "pooler")  # copied, not trained
# What the feed-forward part's width shapes, and at which of its sides.
FEED_FORWARD = {"ffn.weight": 0, "ffn.bias": 0, "ffn_output.weight": 1}
# Keys of an architecture that the student has from its teacher.
KEPT_KEYS = (
    "vocab_size embedding_size hidden_size num_attention_heads intermediate_size hidden_act "
    "hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size "
    "initializer_range layer_norm_eps pad_token_id"
).split()
VARIANCE_BATCHES = 32  # of the training text, that the teacher's variance is measured on


# What the student begins as.


def shared_model(
    teacher: ElbertForSequenceClassification,
    passes: int,
    intermediate_size: int | None = None,
    initial_layer: int | None = None,
    rank: int = 0,
) -> AlbertModel:
    """HF's ALBERT with the teacher's embeddings, mapping and pooler, and one layer for all passes.

    intermediate_size: None keeps the teacher's. initial_layer: the layer (1-based) that the shared
    one begins as; None: the mean of all. rank: of each pass's correction of the matrices.
    """
    if teacher.config.inner_group_num > 1:
        raise UserError("--model_name_or_path: give a BERT, or an ALBERT of inner_group_num 1")
    layers, wide = teacher.config.num_hidden_layers, teacher.config.intermediate_size
    parts, rest = divmod(intermediate_size or wide, wide)
    if rest or not 1 <= parts <= layers:
        raise UserError(
            f"--intermediate_size {intermediate_size}: allowed are the teacher's {wide} and its "
            f"multiples up to {wide * layers}, {wide} for each of its layers"
        )
    if initial_layer and initial_layer > layers:
        raise UserError(f"--initial_layer {initial_layer}: allowed is a layer from 1 to {layers}")
    kept = {key: getattr(teacher.config, key) for key in KEPT_KEYS}
    kept |= {"num_hidden_layers": passes, "intermediate_size": wide * parts}
    if rank and not (passes > 1 and parts == 1 and rank <= teacher.config.hidden_size):
        raise UserError(
            f"--rank {rank}: allowed is 1 to {teacher.config.hidden_size}, the teacher's "
            "hidden_size, with two passes or more, and without --intermediate_size"
        )
    if rank:
        kept |= {"num_hidden_groups": passes, "correction_rank": rank}
    config = AlbertConfig(**kept, classifier_dropout_prob=0.1)
    groups: Any = teacher.albert.encoder.albert_layer_groups
    untied = [groups[teacher.albert.group_of(layer)].albert_layers[0] for layer in range(layers)]
    untied = [layer.state_dict() for layer in untied]
    if initial_layer:
        shared = with_more_units(untied[initial_layer - 1], config)
    else:
        shared = mean_layer(untied, parts)
    model = AlbertModel(config)
    model.get_submodule(LAYER).load_state_dict(shared)
    if rank:
        share_matrices(model)
        start_corrected(model, [untied[k - 1] for k in followed_layers(passes, layers)[1:]])
    for name in TEACHERS:
        copied = teacher.albert.get_submodule(name).state_dict()
        model.get_submodule(name).load_state_dict(copied)
    return model


def mean_layer(layers: Sequence[Tensors], parts: int) -> Tensors:
    """Average several layers' weights, with a feed-forward part `parts` times as wide.

    Each part is the mean of a run of layers, and the parts' outputs are averaged.
    """

    def mean(name: str, start: int, end: int) -> torch.Tensor:
        return torch.stack([layer[name] for layer in layers[start:end]]).mean(0)

    shared = {name: mean(name, 0, len(layers)) for name in layers[0]}
    cuts = [len(layers) * part // parts for part in range(parts + 1)]
    for name, side in FEED_FORWARD.items():
        shared[name] = torch.cat([mean(name, *run) for run in pairwise(cuts)], side)
    shared["ffn_output.weight"] = shared["ffn_output.weight"] / parts
    return shared


@torch.no_grad()
def start_corrected(model: AlbertModel, layers: Iterable[Tensors]) -> None:
    """Begin each pass as one of `layers`, as nearly as its corrections allow: by truncated SVD."""
    groups: Any = model.encoder.albert_layer_groups
    for group, own in zip(groups, layers, strict=True):
        for name, linear in group.albert_layers[0].named_modules():
            if isinstance(linear, nn.Linear):
                parametrizations: Any = linear.parametrizations
                weight = parametrizations.weight
                missing = own[f"{name}.weight"].double() - weight.original
                left, sizes, right = torch.linalg.svd(missing, full_matrices=False)
                roots = sizes[: len(weight[0].down)].sqrt()
                weight[0].up.copy_(left[:, : len(roots)] * roots)
                weight[0].down.copy_(roots[:, None] * right[: len(roots)])
        vectors = {name: tensor for name, tensor in own.items() if tensor.ndim == 1}
        group.albert_layers[0].load_state_dict(vectors, strict=False)


def with_more_units(layer: Tensors, config: AlbertConfig) -> Tensors:
    """Add feed-forward units that change no output (Chen et al. 2016, "Net2Net")."""
    rest = config.intermediate_size - len(layer["ffn.bias"])
    if rest <= 0:
        return layer
    inputs, outputs = layer["ffn.weight"], layer["ffn_output.weight"]
    drawn = torch.randn(rest, inputs.shape[1]) * config.initializer_range
    return {
        **layer,
        "ffn.weight": torch.cat([inputs, drawn.to(inputs)]),
        "ffn.bias": F.pad(layer["ffn.bias"], (0, rest)),
        "ffn_output.weight": F.pad(outputs, (0, rest)),
    }


def new_student(settings: StudentSettings, teacher: "StateTeacher") -> AlbertModel:
    """Make the shared ALBERT; what is the teacher's is not trained.

    The weights of --initial_student, of any number of passes and perhaps narrower, may lack that.
    """
    passes = len(teacher.followed) - 1
    shape = settings.intermediate_size, settings.initial_layer, settings.rank
    student = shared_model(teacher.model, passes, *shape)
    for name in TEACHERS:
        student.get_submodule(name).requires_grad_(False)
    if not (source := settings.initial_student):
        return student
    named, flag = read_weights(source, {}), f"--initial_student {source}"
    tensors = {name.removeprefix("albert."): tensor for name, tensor in named.items()}
    layers = {name.split(".attention.")[0] for name in tensors if ".attention." in name}
    if len(layers) > 1:
        raise UserError(
            f"{flag}: has {len(layers)} layers, and a student one shared layer; give a model that "
            "share_layers.py made"
        )
    prefix = f"{LAYER}."
    layer = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    if layer:
        layer = with_more_units(layer, student.config)
        tensors |= {prefix + name: tensor for name, tensor in layer.items()}
    kept = [name for name, weight in student.named_parameters() if not weight.requires_grad]
    load_into(student, tensors, flag, heads=tuple(kept))
    return student


# What it follows.


def followed_layers(passes: int, layers: int) -> list[int]:
    """List the teacher's layer (0: embeddings) that states 0 … `passes` follow, halves upwards."""
    return [(2 * k * layers + passes) // (2 * passes) for k in range(passes + 1)]


class StateTeacher:
    """A BERT, and those of its states that a student of `passes` follows.

    passes: None for as many as the teacher has layers. `model` has the weights as they are, and
    `packed` computes the states.
    """

    def __init__(
        self, source: str | Path, passes: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        model, _ = load_model(ElbertForSequenceClassification, source)
        self.config = model.config
        self.device = device
        nn.Module.to(model, device)
        self.model = model.eval()
        self.packed = packed_copy(self.model)
        layers = model.albert.num_layers
        self.followed = followed_layers(passes or layers, layers)

    @torch.no_grad()
    def states(self, inputs: Tensors) -> torch.Tensor:
        """Compute what states 0 … N are to be, (N+1, batch, length, hidden).

        inputs: input_ids, token_type_ids and, where there is padding, attention_mask.
        """
        hidden = self.packed.embed(inputs["input_ids"], inputs["token_type_ids"])
        mask = attention_mask_of(inputs.get("attention_mask"))
        states = [hidden, *layer_states(self.packed, hidden, mask)]
        return torch.stack([states[number] for number in self.followed])

    def variances(self, batches: Iterable[Tensors]) -> torch.Tensor:
        """Σ over features of E[x²] − E[x]², over the real tokens of a text: (N+1,)."""
        tokens, first, second = 0, torch.zeros(()), torch.zeros(())
        for inputs in batches:
            inputs = cast(Tensors, send_to_device(inputs, self.device))
            states, mask = self.states(inputs), inputs.get("attention_mask")
            real = states.flatten(1, 2) if mask is None else states[:, mask.bool()]
            real = real.double()  # (N+1, tokens, hidden)
            tokens += real.shape[1]
            first = first + real.sum(1)
            second = second + real.square().sum((1, 2))
        return (second / tokens - (first / tokens).square().sum(1)).float()


def load_teacher(
    settings: SharingSettings, passes: int | None, device: torch.device
) -> tuple[StateTeacher, Tokenizer]:
    """Load the BERT of --model_name_or_path, for a student of so many passes, and its tokenizer."""
    source, length = settings.student.model_name_or_path, settings.text.max_seq_length
    teacher = StateTeacher(source, passes, device)
    if length > (longest := teacher.config.max_position_embeddings):
        raise UserError(f"--max_seq_length {length}: the teacher has {longest} positions")
    if teacher.config.type_vocab_size < 2:
        raise UserError(
            f"--model_name_or_path {source}: has one segment type, and examples are pairs; give a "
            "BERT or an ELECTRA"
        )
    return teacher, load_tokenizer(source, settings.run.do_lower_case)


class DistillationLoss(nn.Module):
    """Weighted mean over passes of the share of the teacher's variance left unexplained.

    variances (N+1,): of the teacher's states that states 0 … N follow, summed over features.
    weights (N+1,): of these states in the loss; they sum to 1.
    """

    def __init__(self, model: AlbertModel, variances: torch.Tensor, weights: torch.Tensor) -> None:
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
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        targets: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **labels: torch.Tensor,
    ) -> ObjectiveOutput:
        """Ids (batch, length), targets (N+1, batch, length, hidden) of the teacher; no `labels`.

        sums: errors (N+1,), squared, of states 0 … N, and tokens, the number of real ones.
        """
        states = self.model(
            input_ids, attention_mask, token_type_ids, output_hidden_states=True
        ).hidden_states
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        errors = [(x.float() - y).square().sum(-1) for x, y in zip(states, targets, strict=True)]
        errors = torch.stack([(error * real).sum() for error in errors])
        tokens = real.sum()
        loss = (self.weights * errors / self.variances).sum() / tokens
        return ObjectiveOutput(loss, {"errors": errors.detach(), "tokens": tokens})

    def shares(self, sums: Sums) -> list[float]:
        """The share of the teacher's variance that states 0 … N leave unexplained."""
        return (sums["errors"] / sums["tokens"] / self.variances).tolist()


# Training and evaluation.


class TeacherText(PretrainingData):
    """A text as batches of as many pieces as `batch_size` full examples have; none is masked."""

    def size(self, longest: int) -> int:
        return max(1, self.batch_size * self.text.max_seq_length // longest)


def train_student(settings: SharingSettings, accelerator: Accelerator) -> None:
    """Train, or go on with a training to the last bit; nothing where it is finished.

    Follows the teacher on --train_files; the student ends in --output_dir.
    """
    flags, run = settings.student, settings.run
    sources = [x for x in (flags.model_name_or_path, flags.initial_student) if x]
    is_finished, checkpoint = find_start(settings, accelerator.num_processes, *sources)
    if is_finished:
        return
    teacher, tokenizer = load_teacher(settings, flags.num_hidden_layers, accelerator.device)
    student = new_student(flags, teacher)
    batch_size = settings.training.per_gpu_train_batch_size * accelerator.num_processes
    text = TeacherText(settings.text, run, tokenizer, batch_size)
    starts = [file_fingerprint(weight_file(source)) for source in sources]
    weights = torch.ones(len(teacher.followed))
    weights[0], weights[-1] = 0, flags.last_pass_weight  # frozen embeddings give state 0
    variances = teacher.variances(islice(text.training_batches(0, 0), VARIANCE_BATCHES))
    objective = DistillationLoss(student, variances, weights / weights.sum())
    optimizer, total = make_optimizer(student, settings.training), settings.training.max_steps
    schedule = make_schedule(optimizer, settings.training.warmup_steps, total)
    state = TrainState(student, tokenizer, optimizer, schedule, objective)
    trainer = Trainer(accelerator, state, settings, fingerprint(text.fingerprint, starts))
    trainer.begin(checkpoint)

    def shown(sums: Sums) -> dict[str, float]:
        return {f"pass/{k}": share for k, share in enumerate(objective.shares(sums))}

    batches = partial(student_batches, accelerator, text, teacher)
    with TrainingLog(trainer, total, lambda out: out.sums, shown) as log:
        trainer.fit(batches, total, log.step)
        trainer.finish()


def student_batches(
    accelerator: Accelerator, text: TeacherText, teacher: StateTeacher, epoch: int, first: int
) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on, with its targets."""
    shard = accelerator.process_index, accelerator.num_processes
    for inputs in text.training_batches(epoch, first, shard):
        inputs = cast(Tensors, send_to_device(inputs, accelerator.device))
        mine = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).sum()
        share = mine / accelerator.reduce(mine, "sum")
        yield Batch({**inputs, "targets": teacher.states(inputs)}, share)


def evaluate_student(settings: SharingSettings, device: torch.device) -> None:
    """Measure the student in --output_dir on --eval_file; print it, write eval_results.json.

    It is each pass's share of the teacher's variance that is left unexplained.
    """
    run, evaluation = settings.run, settings.evaluation
    check_finished(run.output_dir)
    student = AlbertModel(AlbertConfig.from_pretrained(run.output_dir))
    share_matrices(student)
    load_into(student, read_weights(run.output_dir, {r"^albert\.": ""}), run.output_dir, ())
    nn.Module.to(student, device)
    teacher, tokenizer = load_teacher(settings, student.config.num_hidden_layers, device)
    shapes = {x.embeddings.word_embeddings.weight.shape for x in (student, teacher.model.albert)}
    if len(shapes) > 1:
        raise UserError(
            f"{run.output_dir} did not follow {settings.student.model_name_or_path}: give the "
            "teacher of this student with --model_name_or_path"
        )
    text = replace(settings.text, train_files=[evaluation.text_file])
    text = TeacherText(text, run, tokenizer, evaluation.per_gpu_eval_batch_size)
    sums: Sums = {}
    with torch.no_grad():
        variances = teacher.variances(text.evaluation_batches((0, 1)))
        objective = DistillationLoss(student, variances, torch.ones_like(variances)).eval()
        for inputs in text.evaluation_batches((0, 1)):
            inputs = cast(Tensors, send_to_device(inputs, device))
            sums = add_sums(sums, objective(**inputs, targets=teacher.states(inputs)).sums)
    embeddings, *passes = objective.shares(sums)
    print(f"What is left unexplained of the teacher's variance, {int(sums['tokens'])} tokens:")
    rows: list[tuple[object, ...]] = [("embeddings", 0, f"{embeddings:.4f}")]
    for number, share in enumerate(passes, 1):
        rows.append((number, teacher.followed[number], f"{share:.4f}"))
    print(markdown_table(("pass", "teacher's layer", "share"), rows))
    summary = {
        "passes": passes,
        "embeddings": embeddings,
        "tokens": int(sums["tokens"]),
        "followed_layers": teacher.followed[1:],
    }
    write_results(settings, run.output_dir, summary)
