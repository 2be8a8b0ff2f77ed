"""Pre-train ALBERT, or the ALBERT whose tokens decide their depth, on plain text (MLM and SOP).

Make a tokenizer, train, and evaluate on other text:

    python run_pretraining.py --train_tokenizer --train_files text/*.txt \\
        --config_name configs/act_tiny.json --output_dir out/tokenizer

    python run_pretraining.py --model_type albert_act --do_train --train_files text/*.txt \\
        --config_name configs/act_tiny.json --tokenizer_name out/tokenizer --output_dir out/act_tiny

    python run_pretraining.py --model_type albert_act --do_eval --eval_file test.txt \\
        --output_dir out/act_tiny

On several GPUs: `torchrun --nproc_per_node 8 run_pretraining.py …` with the same flags.
`--model_type albert` trains the dense model; run_glue.py fine-tunes either.

The defaults are the published schedule (ALBERT's, Lan et al. 2020; Simoulin and Crabbé 2021): LAMB,
4096 examples a step, 112 500 steps at length 128 with a peak learning rate of 1.76e-3, then 12 500
steps at length 512 with 2.75e-4. --gradient_accumulation_steps makes up what the batch lacks.
"""

import argparse
import logging
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import Accelerator
from huggingface_hub.errors import StrictDataclassError
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from evaluation.running import environment, to_device
from glue.files import run_script, write_json
from modeling import AlbertActForPreTraining, UserError, load_tokenizer
from modeling.configuration import check_architecture
from modeling.keys import ACT_KEYS, ELBERT_KEYS
from modeling.loading.configs import ORIGIN_KEYS
from modeling.loading.files import find_file, read_json
from modeling.loading.weights import read_weights
from modeling.pretraining import PreTrainingObjective, Sums, add_sums, means
from training.arguments import at_least, check_new_output_dir
from training.checkpoints import check_finished, left_to_train
from training.loop import Batch, ProgressLog, Step, Training, make_optimizer, start_script
from training.pretraining_data import (
    PretrainingData,
    Recipe,
    TokenClass,
    check_text,
    train_tokenizer,
)

logger = logging.getLogger(__name__)

share = at_least(0, float, largest=1)

MODELS = {"albert": AlbertForPreTraining, "albert_act": AlbertActForPreTraining}
# The published learning rate at length 512, as a share of that at length 128.
LONG_RATE = 2.75e-4 / 1.76e-3


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_task_flags(parser)
    add_data_flags(parser)
    add_optimisation_flags(parser)
    args = parser.parse_args()
    if not (args.train_tokenizer or args.do_train or args.do_eval):
        raise UserError("nothing to do: give --train_tokenizer, --do_train or --do_eval")
    if (args.train_tokenizer or args.do_train) and not args.train_files:
        raise UserError("--train_files is missing: the text to train on")
    if args.do_eval and not args.eval_file:
        raise UserError("--eval_file is missing: the text to evaluate on")
    if args.train_tokenizer and args.tokenizer_name:
        raise UserError(
            f"--train_tokenizer writes to --output_dir, and --tokenizer_name {args.tokenizer_name} "
            "would be used: give one of the two"
        )
    return args


def add_task_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--train_tokenizer", action="store_true", help="write spiece.model to --output_dir")
    add("--do_train", action="store_true")
    add("--do_eval", action="store_true", help="losses, accuracies and updates on --eval_file")
    add("--model_type", default="albert_act", choices=tuple(MODELS), type=str.lower)
    add("--config_name", help="config.json or its folder: what --do_train trains")
    add(
        "--tau",
        type=at_least(0, float),
        help="weight of the ponder cost in training, if not the config's",
    )
    add("--tokenizer_name", help="folder of spiece.model, if not --output_dir")
    add("--vocab_size", type=at_least(6), help="of --train_tokenizer, if not the config's")
    add("--do_lower_case", action="store_true", help="for uncased models")
    add("--output_dir", required=True, help="where the model and the results go")
    add("--overwrite_output_dir", action="store_true")
    add("--no_cuda", action="store_true", help="stay on the CPU")
    add("--bf16", action="store_true", help="bfloat16 mixed precision")
    add("--seed", default=42, type=at_least(0))


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    add, recipe = parser.add_argument, Recipe()
    add("--train_files", nargs="+", default=[], help="one sentence a line, or --split_sentences")
    add("--eval_file", help="text of the same kind")
    add(
        "--split_sentences",
        action="store_true",
        help="lines are paragraphs: cut them into sentences",
    )
    add("--max_seq_length", default=recipe.max_seq_length, type=at_least(8))
    add("--masked_lm_prob", default=recipe.masked_share, type=share)
    add("--max_predictions_per_seq", default=recipe.max_predictions, type=at_least(1))
    add("--ngram", default=recipe.max_ngram, type=at_least(1), help="words masked together")
    add("--short_seq_prob", default=recipe.short_probability, type=share)
    add(
        "--shuffle_buffer",
        default=recipe.shuffle_buffer,
        type=at_least(1),
        help="examples that are shuffled among each other, all in memory",
    )


def add_optimisation_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--optimizer", default="lamb", choices=("lamb", "adamw"))
    add("--max_steps", default=125_000, type=at_least(1), help="optimiser steps of both lengths")
    add("--long_seq_length", default=512, type=at_least(8), help="length of the last steps")
    add("--long_fraction", default=0.1, type=share, help="share of these steps")
    add("--per_gpu_train_batch_size", default=64, type=at_least(1), help="at --max_seq_length")
    add("--gradient_accumulation_steps", default=64, type=at_least(1))
    add("--per_gpu_eval_batch_size", default=64, type=at_least(1))
    add("--learning_rate", default=1.76e-3, type=at_least(0, float), help="peak")
    add("--warmup_steps", default=3125, type=at_least(0))
    add("--power", default=1.0, type=at_least(0, float), help="of the polynomial decay to 0")
    add("--weight_decay", default=0.01, type=at_least(0, float))
    add("--adam_epsilon", default=1e-6, type=at_least(0, float))
    add("--max_grad_norm", default=1.0, type=at_least(0, float))
    add("--logging_steps", default=100, type=at_least(1))
    add("--save_steps", default=5000, type=at_least(0), help="checkpoint every so many; 0: none")
    add("--save_total_limit", type=at_least(1), help="keep only the newest so many checkpoints")
    add(
        "--resume_from_checkpoint",
        nargs="?",
        const="latest",
        metavar="PATH",
        help="go on with a training: from its latest checkpoint, or from this one",
    )


class Phase(NamedTuple):
    """A part of the training with its own length of examples and its own learning rate."""

    steps: int
    max_seq_length: int
    batch_size: int  # examples of a batch, over all processes
    accumulation: int  # batches of a step
    rate: float  # peak learning rate as a share of --learning_rate
    warmup_steps: int


def phases_of(args: argparse.Namespace, processes: int) -> list[Phase]:
    """The published two: most steps with short examples, the rest with long ones.

    Long examples come in batches of about as many pieces, and in steps of as many examples.
    """
    short, long = args.max_seq_length, args.long_seq_length
    batch = args.per_gpu_train_batch_size * processes
    accumulation = args.gradient_accumulation_steps
    long_steps = round(args.max_steps * args.long_fraction)
    long_batch = batch * short // long
    if long_steps and long_batch < processes:
        raise UserError(
            f"--per_gpu_train_batch_size {args.per_gpu_train_batch_size} is not one example at "
            f"length {long}: allowed is at least {-(-long // short)}, or --long_fraction 0"
        )
    long_accumulation = -(-batch * accumulation // max(1, long_batch))
    long_warmup = int(args.warmup_steps * args.long_fraction)
    warmup = args.warmup_steps
    phases = [
        Phase(args.max_steps - long_steps, short, batch, accumulation, 1.0, warmup),
        Phase(long_steps, long, long_batch, long_accumulation, LONG_RATE, long_warmup),
    ]
    phases = [phase for phase in phases if phase.steps > 0]
    for phase in phases:
        if phase.warmup_steps > phase.steps:
            logger.warning(
                "--warmup_steps %d: the learning rate never reaches its peak in %d steps",
                phase.warmup_steps,
                phase.steps,
            )
    return phases


def rate_at(phases: list[Phase], power: float, step: int) -> float:
    """Share of --learning_rate at `step` (0-based): in each phase, warm-up and decay to 0."""
    for phase in phases:
        if step < phase.steps:
            break
        step -= phase.steps
    if step < phase.warmup_steps:
        return phase.rate * step / phase.warmup_steps
    left = (phase.steps - step) / max(1, phase.steps - phase.warmup_steps)
    return phase.rate * max(0.0, left) ** power


def data_of(
    args: argparse.Namespace,
    paths: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    batch_size: int,
) -> PretrainingData:
    recipe = Recipe(
        max_seq_length,
        args.seed,
        args.short_seq_prob,
        args.masked_lm_prob,
        args.max_predictions_per_seq,
        args.ngram,
        args.shuffle_buffer,
    )
    return PretrainingData(paths, args.split_sentences, tokenizer, recipe, batch_size)


def read_config(args: argparse.Namespace) -> AlbertConfig:
    """The configuration to train, without what belongs to another mode than --model_type."""
    if not args.config_name:
        raise UserError("--config_name is missing, e.g. configs/act_tiny.json")
    path = Path(args.config_name)
    path = path if path.is_file() else find_file(path, "config.json")
    if path is None:
        raise UserError(f"{args.config_name} holds no config.json")
    foreign = {*ORIGIN_KEYS, *ELBERT_KEYS}
    kind = MODELS[args.model_type].config_class
    if kind is AlbertConfig:
        foreign |= {*ACT_KEYS}
    values = {name: value for name, value in read_json(path).items() if name not in foreign}
    if args.tau is not None:
        if kind is AlbertConfig:
            raise UserError("--tau is of --model_type albert_act; the dense model ponders nothing")
        values["tau"] = args.tau
    try:
        config = kind(**values)
        check_architecture(config)
    # HF's own post-processing of a key of a wrong type fails in many ways.
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    return config


def check_sizes(
    args: argparse.Namespace, config: AlbertConfig, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise UserError for a tokenizer or examples that the model has no embeddings for."""
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"{args.tokenizer_name or args.output_dir}: the tokenizer has {len(tokenizer)} pieces, "
            f"vocab_size is {config.vocab_size}"
        )
    lengths = {"--max_seq_length": args.max_seq_length}
    if args.do_train and args.long_fraction > 0:
        lengths["--long_seq_length"] = args.long_seq_length
    for flag, length in lengths.items():
        if length > config.max_position_embeddings:
            raise UserError(
                f"{flag} {length}: allowed is at most max_position_embeddings = "
                f"{config.max_position_embeddings}"
            )


# Rows of the published table. Here every token is of one class; the published evaluation counted
# whatever is not [MASK] as unmasked, and every changed token, [MASK] too, as random.
ROWS = {
    "All unmasked tokens": TokenClass.UNMASKED,
    "[MASK/MASK]": TokenClass.MASK_MASK,
    "[MASK/random]": TokenClass.MASK_RANDOM,
    "[MASK/original]": TokenClass.MASK_ORIGINAL,
    "[CLS]": TokenClass.CLS,
    "[SEP]": TokenClass.SEP,
}


def mean_updates(sums: Sums) -> dict[str, float]:
    """Mean updates of a token by the published table's rows; {} for a dense model."""
    if "updates" not in sums:
        return {}
    updates, tokens = sums["updates"].tolist(), sums["tokens"].tolist()
    rows = {name: (updates[row], tokens[row]) for name, row in ROWS.items()}
    everything = tuple(map(sum, zip(*rows.values(), strict=True)))
    rows = {"All tokens": everything, **rows}
    return {name: total / number for name, (total, number) in rows.items() if number}


class TrainingLog(ProgressLog):
    """What pre-training minimises, and the updates of each class of tokens."""

    def __init__(self, training: Training, every: int, total: int) -> None:
        super().__init__(training, every, total)
        self.accelerator, self.tau = training.accelerator, training.objective.tau
        self.sums: Sums = {}

    def step(self, step: Step) -> None:
        """After an optimiser step; writes the means since the last time when that is due."""
        for out in step.outs:
            self.sums = add_sums(self.sums, out.sums)
        if not self.advance(step):
            return
        sums, self.sums = self.accelerator.reduce(self.sums, "sum"), {}
        rows = mean_updates(sums)
        # TensorBoard's tags have no brackets.
        updates = {f"updates/{name.strip('[]')}": value for name, value in rows.items()}
        values = {**means(sums, self.tau), **updates, "learning_rate": step.learning_rate}
        self.scalars(values, step.number)
        self.line({**values, "step": step.number})


def load_for_training(
    args: argparse.Namespace,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model with new weights, and the tokenizer of its text."""
    config = read_config(args)
    tokenizer = load_tokenizer(args.tokenizer_name or args.output_dir, args.do_lower_case)
    check_sizes(args, config, tokenizer)
    return MODELS[args.model_type](config), tokenizer


def train(
    args: argparse.Namespace,
    accelerator: Accelerator,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    checkpoint: Path | None = None,
) -> None:
    """Minimise MLM + SOP + τ · ponder cost; the trained model ends in --output_dir.

    With `checkpoint`, goes on from there: the same steps, to the last bit.
    """
    phases = phases_of(args, accelerator.num_processes)
    data = [data_of(args, args.train_files, tokenizer, *phase[1:3]) for phase in phases]
    total = sum(phase.steps for phase in phases)
    logger.info("***** Running training *****")
    for phase in phases:
        logger.info("  %s", phase)
    optimizer = optimizer_of(args, model)
    schedule = LambdaLR(optimizer, lambda step: rate_at(phases, args.power, step))
    training = Training(
        accelerator,
        model,
        tokenizer,
        optimizer,
        schedule,
        vars(args),
        data[0].fingerprint(),
        args.max_grad_norm,
        PreTrainingObjective(model, len(TokenClass)),
    )
    training.begin(checkpoint)
    with TrainingLog(training, args.logging_steps, total) as log:
        for step in training.kept(all_steps(training, phases, data)):
            log.step(step)


def all_steps(
    training: Training, phases: Sequence[Phase], data: Sequence[PretrainingData]
) -> Iterator[Step]:
    """The optimiser steps of all phases, from the training's position on."""
    end = 0
    for phase, text in zip(phases, data, strict=True):
        if training.position.step == end:  # the phase begins: with its own first batch
            training.position.epoch = training.position.batch = 0
        end += phase.steps
        training.accelerator.gradient_accumulation_steps = phase.accumulation
        training.accelerator.step = 0  # the batches counted towards a step
        yield from training.steps(partial(my_batches, training.accelerator, text), end)


def my_batches(
    accelerator: Accelerator, data: PretrainingData, epoch: int, first: int
) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on.

    Each carries what its whole global batch has to predict, which the losses are averaged over.
    """
    shard = accelerator.process_index, accelerator.num_processes
    for inputs in data.training_batches(epoch, first, shard):
        inputs = to_device(inputs, accelerator.device)
        counts = {
            "predictions": (inputs["labels"] != -100).sum(),
            "pairs": (inputs["sentence_order_label"] != -100).sum(),
            "examples": torch.tensor(len(inputs["labels"]), device=accelerator.device),
        }
        yield Batch({**inputs, **accelerator.reduce(counts, "sum")}, share=1.0)


def optimizer_of(args: argparse.Namespace, model: PreTrainedModel) -> torch.optim.Optimizer:
    """--optimizer over the groups of `make_optimizer`: biases and layer norms do not decay.

    LAMB as published (You et al. 2020, version 3, and ALBERT's): decay is a part of the update
    whose norm the trust ratio takes, moments are not corrected for their bias, no norm is limited,
    and what does not decay has no trust ratio: with one, a halting bias could not change its sign.
    """
    adamw = make_optimizer(model, args.learning_rate, args.weight_decay, args.adam_epsilon)
    if args.optimizer == "adamw":
        return adamw
    from pytorch_optimizer import Lamb  # a hundred optimisers: seconds to import

    kept = ("params", "weight_decay", "decays", "constant")
    groups = [
        {**{key: group[key] for key in kept}, "adam": not group["decays"]}
        for group in adamw.param_groups
    ]
    optimizer = Lamb(
        groups,
        lr=args.learning_rate,
        eps=args.adam_epsilon,
        weight_decouple=False,
        adam_debias=True,  # the library's word for leaving the correction out
    )
    optimizer.clamp = math.inf
    return optimizer


def load_trained(args: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in --output_dir and its tokenizer; UserError where they are not as asked for."""
    check_finished(args.output_dir)
    path = Path(args.output_dir) / "config.json"
    kind = read_json(path).get("model_type")
    if kind != args.model_type:
        raise UserError(f"{path}: the model is of --model_type {kind}, not {args.model_type}")
    args.config_name, args.tau = str(path), None
    model = MODELS[kind].from_pretrained(
        None, config=read_config(args), state_dict=read_weights(args.output_dir)
    )
    tokenizer = load_tokenizer(args.output_dir, args.do_lower_case)
    check_sizes(args, model.config, tokenizer)
    return model, tokenizer


@torch.inference_mode()
def evaluate(
    args: argparse.Namespace,
    accelerator: Accelerator,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, float]:
    """Losses, accuracies and mean updates on --eval_file; eval_results.json and the table."""
    batch_size = args.per_gpu_eval_batch_size * accelerator.num_processes
    data = data_of(args, [args.eval_file], tokenizer, args.max_seq_length, batch_size)
    objective = PreTrainingObjective(model.to(accelerator.device).eval(), len(TokenClass))
    total: Sums = {}
    for batch in data.evaluation_batches((accelerator.process_index, accelerator.num_processes)):
        total = add_sums(total, objective(**to_device(batch, accelerator.device)).sums)
    total, tau = accelerator.reduce(total, "sum"), objective.tau
    summary = {
        **means(total, tau),
        "updates": mean_updates(total),
        "max_updates": model.config.num_hidden_layers,
        "tau": tau,
        "examples": int(total["examples"]),
        "eval_file": str(args.eval_file),
        "environment": environment(accelerator.device),
    }
    if accelerator.is_main_process:
        write_json(Path(args.output_dir) / "eval_results.json", summary)
        print_results(summary)
    return summary


def print_results(summary: dict) -> None:
    print("***** Eval results *****")
    for name in ("loss", "mlm_loss", "mlm_acc", "sop_loss", "sop_acc", "ponder_cost"):
        if name in summary:
            print(f"{name} = {summary[name]:.4f}")
    if summary["updates"]:
        print()
        print_table({"this model": summary})


def print_table(models: dict[str, dict]) -> None:
    """The published table, in Markdown: a column for each model's `eval_results.json`."""
    columns = {name: cells_of(summary) for name, summary in models.items()}
    rows = list(dict.fromkeys(row for cells in columns.values() for row in cells))
    print("| | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for row in rows:
        print(f"| {row} | " + " | ".join(cells.get(row, "") for cells in columns.values()) + " |")


def cells_of(summary: dict) -> dict[str, str]:
    """A model's column of the table; a dense model has no τ, and all updates for every token."""
    adaptive = bool(summary["updates"])
    cells = {
        "τ": f"{summary['tau']:g}" if adaptive else "",
        "Max iterations": str(summary["max_updates"]),
    }
    for name, key in (("mlm (Acc.)", "mlm_acc"), ("sop (Acc.)", "sop_acc")):
        cells[name] = f"{100 * summary[key]:.1f}" if key in summary else ""
    return cells | {name: f"{value:.2f}" for name, value in summary["updates"].items()}


def make_tokenizer(args: argparse.Namespace) -> None:
    """--train_tokenizer: spiece.model in --output_dir, and no other tokenizer beside it."""
    output = Path(args.output_dir)
    if args.resume_from_checkpoint and (output / "spiece.model").exists():
        return  # of the run that goes on
    size = args.vocab_size or read_config(args).vocab_size
    train_tokenizer(args.train_files, args.split_sentences, size, args.do_lower_case, output)
    for stale in ("tokenizer.json", "tokenizer_config.json"):  # would be taken in its place
        (output / stale).unlink(missing_ok=True)


def main() -> None:
    args = parse_args()
    accelerator = Accelerator(
        # Without this, several processes on a machine without a GPU would not find each other.
        cpu=args.no_cuda or not torch.accelerator.is_available(),
        mixed_precision="bf16" if args.bf16 else "no",
    )
    start_script(accelerator, args.seed)
    if args.do_train or args.train_tokenizer:
        check_new_output_dir(args)
    # What is wrong with a text is worth knowing before the training, not days into it.
    if args.do_train:
        check_text(args.train_files)
    if args.do_eval:
        check_text([args.eval_file])
    accelerator.wait_for_everyone()  # before the main process writes into it
    if args.train_tokenizer and accelerator.is_main_process:
        make_tokenizer(args)
    accelerator.wait_for_everyone()
    if args.do_train:
        unfinished, checkpoint = left_to_train(args.output_dir, args.resume_from_checkpoint)
        if unfinished:
            train(args, accelerator, *load_for_training(args), checkpoint)
    if args.do_eval:
        evaluate(args, accelerator, *load_trained(args))


if __name__ == "__main__":
    run_script(main)
