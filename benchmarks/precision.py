"""bf16 and int8 beside float32: which exits of a trained model stay, and the time of a layer pass.

    OMP_NUM_THREADS=1 python benchmarks/precision.py
    OMP_NUM_THREADS=1 python benchmarks/precision.py --model out/demo/RTE \\
        --data_dir configs/sample/RTE --task_name RTE --do_lower_case

Prints Markdown. With --model (ELBERT models that run_glue.py trained, several of one task) the
first table compares early exit on the dev set with float32's, one example at a time, and with
itself where examples share a batch. The times are those of ALBERT-base with random weights: all
precisions run in turn, a run goes through all layers, and a cell is the median of the rounds.

int8 is torch's dynamic quantisation of the layers' linear maps, on the CPU: weights with a scale
for each output, activations with one scale for all tokens of a call.
"""

import argparse
import copy
import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

from benchmarks.contenders import BASE
from benchmarks.timing import machine, seconds, spread_of, take_turns
from evaluation.early_exit import run_early_exit
from evaluation.job import Job, load_trained
from evaluation.modes import MODES
from evaluation.results import predictions_of
from glue.features import encode
from glue.tasks import Task, get_task, read_examples
from modeling import ElbertConfig, UserError
from modeling import ElbertForSequenceClassification as Model
from modeling.albert import cast_layers
from modeling.cpu_packing import PackedLayer, packed_weights, side_by_side
from modeling.depth import layer_states
from modeling.layer import AlbertLayer
from training.settings import FlagRules
from utils.files import run_script

CPU = torch.device("cpu")
SLOTS = 32
EXITS_HEADER = (
    "| model | examples | precision | exits as in fp32 | answers as in fp32 "
    f"| another exit with {SLOTS} slots than alone |\n|---|---|---|---|---|---|"
)


# Where a processor has no products of int8 that add up in int32, pairs of them are cut at 16 bits.
CUTS_SUMS = not any(has for name, has in torch.cpu.get_capabilities().items() if "vnni" in name)


def int8_linear(weight: torch.Tensor, bias: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Make the linear map (..., in) -> (..., out) of `weight` (out, in) in torch's int8.

    Its inputs have 256 levels; 128 where sums would be cut.
    """
    scales = weight.detach().abs().amax(1).double() / 127
    zeros = torch.zeros_like(scales, dtype=torch.long)
    quantised = torch.quantize_per_channel(weight.detach(), scales, zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantised, bias.detach())
    return lambda states: torch.ops.quantized.linear_dynamic(states, packed, CUTS_SUMS)


class Int8Layer(PackedLayer):
    """The layer pass with int8 maps: attention, activation, sums and norms stay in float32."""

    def __init__(self, layer: AlbertLayer) -> None:
        self.layer = layer
        self.query_key_value = int8_linear(*side_by_side(layer.attention.projections))
        maps = (layer.attention.dense, layer.ffn, layer.ffn_output)
        self.dense, self.ffn, self.ffn_output = (int8_linear(x.weight, x.bias) for x in maps)

    def project(self, flat: torch.Tensor, parts: slice) -> torch.Tensor:
        """As PackedLayer's, of all parts: a pass of whole examples asks for no others."""
        return self.query_key_value(flat)

    def finish(self, flat: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        attended = layer.attention_norm(flat + self.dense(context))
        inner = layer.activation(self.ffn(attended))
        return layer.full_layer_layer_norm(attended + self.ffn_output(inner))


def quantise_layers(model: Model) -> None:
    for layer in model.modules():
        if isinstance(layer, AlbertLayer):
            layer.forward = Int8Layer(layer)


FP32, BF16, INT8 = "fp32", "bf16, layers' products", "int8, layers' products"
PRECISIONS = {
    FP32: lambda model: None,
    BF16: partial(cast_layers, dtype=torch.bfloat16),
    "bf16, everything": lambda model: model.to(torch.bfloat16),
    INT8: quantise_layers,
}


def in_precisions(model: Model) -> dict[str, Model]:
    """Copy `model` into each of PRECISIONS."""
    copies = {name: copy.deepcopy(model) for name in PRECISIONS}
    for name, change in PRECISIONS.items():
        change(copies[name])
    return copies


def all_passes(model: Model, hidden: torch.Tensor) -> None:
    for _ in layer_states(model, hidden, None):
        pass


def print_times(args: argparse.Namespace) -> None:
    """Print a row for each shape: milliseconds of a layer pass, bf16's ratio to int8's."""
    torch.manual_seed(0)
    models = in_precisions(Model(ElbertConfig(**BASE)).eval())
    print(f"| ms a layer pass: batch, length | {' | '.join(models)} | bf16 / int8 | spread |")
    print("|---" * (len(models) + 3) + "|")
    with packed_weights(nn.ModuleList(models.values()).eval()):
        for batch, length in itertools.product(args.batches, args.lengths):
            hidden = torch.randn(batch, length, BASE["hidden_size"])
            timers = {
                name: partial(seconds, partial(all_passes, model, hidden.to(model.dtype)), CPU)
                for name, model in models.items()
            }
            take_turns(timers, 1)  # warms caches
            times = take_turns(timers, args.rounds)
            passes = BASE["num_hidden_layers"]
            cells = [f"{statistics.median(t) / passes * 1e3:.2f}" for t in times.values()]
            ratio = spread_of(times[BF16], times[INT8])
            print(f"| {batch}, {length} | {' | '.join(cells)} | {ratio} |", flush=True)


def print_exits(directory: Path, task: Task, args: argparse.Namespace) -> None:
    """Print what early exit on the dev set keeps of float32's, a row for each precision."""
    mode = MODES["albert"]
    model, tokenizer = load_trained(directory, mode, task, CPU, args.do_lower_case)
    examples = read_examples(task, args.data_dir, "dev")
    job = Job(mode, model, tokenizer, task, encode(examples, tokenizer, args.max_seq_length))
    fp32 = run_early_exit(job)
    for name, changed in in_precisions(model).items():
        job = replace(job, model=changed)
        alone, together = (run_early_exit(replace(job, batch_size=n)) for n in (1, SLOTS))
        left, answers = alone["exit_layer"], predictions_of(alone["logits"])
        kept = torch.from_numpy(answers == predictions_of(fp32["logits"]))
        shares = left == fp32["exit_layer"], kept, together["exit_layer"] != left
        cells = [f"{which.double().mean().item():.1%}" for which in shares]
        if task.is_regression:
            cells[1] = "–"  # answers are numbers: none stays the same to the last bit
        row = (str(directory), str(len(examples)), name, *cells)
        print(f"| {' | '.join(row)} |", flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, nargs="+", default=[], help="folders of trained models of one task")
    add("--data_dir", help="folder with the task's .tsv files")
    add("--task_name", help="GLUE task, e.g. RTE")
    add("--max_seq_length", default=128, type=int, help="longer texts are truncated")
    add("--do_lower_case", action="store_true", help="for uncased models")
    add("--rounds", default=5, type=FlagRules(low=1).reader(int), help="timed rounds of each case")
    add("--batches", default=[1, 32], type=FlagRules(low=1).reader(int), nargs="+")
    add("--lengths", default=[32, 128], type=FlagRules(low=1).reader(int), nargs="+")
    args = parser.parse_args()
    if args.model and not (args.data_dir and args.task_name):
        raise UserError("--model needs --task_name, and --data_dir with the task's .tsv files")
    return args


def main() -> None:
    args = parse_args()
    torch.backends.quantized.engine = "onednn"
    print(f"{machine(CPU)}; times are medians of {args.rounds} rounds\n")
    if args.model:
        print(EXITS_HEADER)
    for directory in args.model:
        print_exits(directory, get_task(args.task_name), args)
    print()
    print_times(args)


if __name__ == "__main__":
    run_script(main)
