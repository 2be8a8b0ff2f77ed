"""Training one shared layer to follow a BERT: plain text in batches, the student, the loop."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from transformers import AlbertModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from modeling.cpu_packing import packed_weights
from modeling.errors import UserError
from modeling.layer_sharing import (
    FEED_FORWARD,
    LAYER,
    DistillationLoss,
    Teacher,
    shared_config,
    shared_model,
    variance_sums,
    variances,
    widened,
)
from modeling.loading.files import weight_files
from modeling.loading.tokenizers import load_tokenizer
from modeling.loading.weights import load_into, read_weights, suite_names
from modeling.pretraining import Sums, add_sums
from training.checkpoints import TrainState, find_checkpoint, is_trained
from training.optimizer import make_optimizer, make_schedule
from training.pretraining_data import Draft, PretrainingData, pad_examples, unmasked
from training.pretraining_settings import SharingSettings, StudentSettings
from training.trainer import Batch, Trainer, TrainingLog
from utils.fingerprint import file_fingerprint, fingerprint

VARIANCE_BATCHES = 32  # of the training text, that the teacher's variance is measured on


class TeacherText(PretrainingData):
    """A text as batches of as many pieces as `batch_size` full examples have; none is masked."""

    window = 8192

    def batches_of(self, window: Sequence[Draft]) -> list[list[Draft]]:
        """Cut a window, longest first; the shortest are left out where they are too few."""
        room, batches = self.batch_size * self.text.max_seq_length, []
        drafts, start = sorted(window, key=lambda draft: -draft.length), 0
        while start < len(drafts):
            batches.append(drafts[start : start + max(1, room // drafts[start].length)])
            start += len(batches[-1])
        return [batch for batch in batches if len(batch) >= self.batch_size]

    def batch(
        self, drafts: Sequence[Draft], epoch: int, shard: tuple[int, int] = (0, 1)
    ) -> dict[str, torch.Tensor]:
        """Make the model's inputs alone of a shard's examples; with padding also attention_mask."""
        examples = [unmasked(draft, self.vocabulary) for draft in drafts[shard[0] :: shard[1]]]
        batch = pad_examples(examples, self.vocabulary.pad)
        inputs = ("input_ids", "token_type_ids", "attention_mask")
        return {name: batch[name] for name in inputs if name in batch}


def load_teacher(
    settings: SharingSettings, passes: int | None, device: torch.device
) -> tuple[Teacher, Tokenizer]:
    """Load the BERT of --model_name_or_path, for a student of so many passes, and its tokenizer."""
    source, length = settings.student.model_name_or_path, settings.text.max_seq_length
    teacher = Teacher(source, passes, device)
    if length > (longest := teacher.config.max_position_embeddings):
        raise UserError(f"--max_seq_length {length}: the teacher has {longest} positions")
    return teacher, load_tokenizer(source, settings.run.do_lower_case)


def new_student(settings: StudentSettings, teacher: Teacher) -> AlbertModel:
    """Make the shared ALBERT; what is the teacher's is not trained."""
    passes = len(teacher.followed) - 1
    config = shared_config(teacher.config, passes, settings.intermediate_size)
    student = shared_model(teacher.backbone, config, settings.initial_layer)
    for part in (student.embeddings, student.encoder.embedding_hidden_mapping_in, student.pooler):
        part.requires_grad_(False)
    if settings.initial_student:
        adopt_student(student, settings.initial_student)
    return student


def adopt_student(student: AlbertModel, source: str) -> None:
    """Give `student` the weights of an earlier one, of any number of passes, perhaps narrower.

    What is not trained, since it is the teacher's, may be missing.
    """
    named, flag = read_weights(source, suite_names), f"--initial_student {source}"
    tensors = {name.removeprefix("albert."): tensor for name, tensor in named.items()}
    layers = {name.split(".attention.")[0] for name in tensors if ".attention." in name}
    if len(layers) > 1:
        raise UserError(
            f"{flag}: has {len(layers)} layers, and a student one shared layer; give a model that "
            "share_layers.py made"
        )
    prefix = LAYER.format(0)
    layer = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    if layer.keys() >= FEED_FORWARD:
        if (units := len(layer["ffn.bias"])) > student.config.intermediate_size:
            raise UserError(
                f"{flag}: its feed-forward part has {units} units: give --intermediate_size {units}"
            )
        layer = widened(layer, student.config)
        tensors |= {prefix + name: tensor for name, tensor in layer.items()}
    kept = [name for name, weight in student.named_parameters() if not weight.requires_grad]
    load_into(student, tensors, flag, heads=tuple(kept))


def train_student(settings: SharingSettings, accelerator: Accelerator) -> None:
    """Train, or go on with a training to the last bit; nothing where it is finished.

    Follows the teacher on --train_files; the student ends in --output_dir.
    """
    flags, schedule, run = settings.student, settings.training, settings.run
    batch_size = schedule.per_gpu_train_batch_size * accelerator.num_processes
    if is_trained(settings, accelerator.num_processes):
        return
    checkpoint = find_checkpoint(run)
    teacher, tokenizer = load_teacher(settings, flags.num_hidden_layers, accelerator.device)
    student = new_student(flags, teacher)
    text = TeacherText(settings.text, tokenizer, run.seed, batch_size)
    sources = filter(None, (flags.model_name_or_path, flags.initial_student))
    weights = [file_fingerprint(path) for source in sources for path in weight_files(source)]
    data = fingerprint(text.text_hash(), weights)
    # The teacher's weights are packed once. Inference mode, which comes with that, is not for the
    # student.
    with packed_weights(teacher.backbone), torch.inference_mode(False):
        objective = make_objective(flags, teacher, student, text)
        rates = schedule.learning_rate, schedule.weight_decay, schedule.adam_epsilon
        optimizer, total = make_optimizer(student, *rates), schedule.max_steps
        rates = make_schedule(optimizer, schedule.warmup_steps, total)
        state = TrainState(student, tokenizer, optimizer, rates, objective)
        trainer = Trainer(accelerator, state, settings, data)
        trainer.begin(checkpoint)

        def shown(sums: Sums) -> dict[str, float]:
            """The share of the teacher's variance that every pass leaves unexplained."""
            shares = (sums["errors"] / sums["tokens"] / objective.variances).tolist()
            return {f"pass/{k}": share for k, share in enumerate(shares)}

        batches = partial(student_batches, accelerator, text, teacher)
        with TrainingLog(trainer, total, lambda out: out.sums, shown) as log:
            trainer.fit(batches, total, log.step)
            trainer.finish()


def make_objective(
    settings: StudentSettings, teacher: Teacher, student: AlbertModel, text: TeacherText
) -> DistillationLoss:
    """Make the loss, in units of the teacher's variance on the text's first batches."""
    weights = torch.ones(student.config.num_hidden_layers + 1)
    weights[0], weights[-1] = 0, settings.last_pass_weight  # frozen embeddings give state 0
    if not weights.any():
        raise UserError("--last_pass_weight 0: the only pass would have no weight in the loss")
    sums: Sums = {}
    for inputs in islice(text.training_batches(0, 0), VARIANCE_BATCHES):
        inputs = send_to_device(inputs, teacher.device)
        sums = add_sums(sums, variance_sums(teacher.states(inputs), inputs.get("attention_mask")))
    return DistillationLoss(student, variances(sums), weights / weights.sum())


def student_batches(
    accelerator: Accelerator, text: TeacherText, teacher: Teacher, epoch: int, first: int
) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on, with its targets."""
    shard = accelerator.process_index, accelerator.num_processes
    for inputs in text.training_batches(epoch, first, shard):
        inputs = send_to_device(inputs, accelerator.device)
        mine = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).sum()
        share = (mine / accelerator.reduce(mine, "sum")).item()
        yield Batch({**inputs, "targets": teacher.states(inputs)}, share)
