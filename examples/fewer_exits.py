"""Group the layers of a BERT, so that it gets an exit after every second or third layer only.

    python examples/fewer_exits.py --model_name_or_path sentence-transformers/all-MiniLM-L6-v2 \\
        --layers_per_exit 2 --output_dir out/minilm-246

The folder is an encoder for --model_name_or_path, with the same weights: MiniLM's six layers are
three groups of two, with an exit after layers 2, 4 and 6. Half of the exit checks are then saved. A
group counts as one layer in all commands, files and messages.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from safetensors.torch import save

from elbert import load_tokenizer
from elbert.loading.configs import as_albert, load_config, read_encoder_config
from elbert.loading.weights import read_weights
from elbert_base.errors import UserError
from elbert_base.files import local_folder
from runs.files import check_place
from runs.flags import AT_LEAST_1, FlagParser
from runs.folder import RunFolder
from runs.processes import run_script


def grouped_name(name: str, size: int) -> str:
    """Rename a tensor of layer i, which is layer i mod size of group i // size."""
    layer = re.search(r"albert_layer_groups\.(\d+)\.albert_layers\.0\.", name)
    if layer is None:
        return name
    group, place = divmod(int(layer[1]), size)
    return name.replace(layer[0], f"albert_layer_groups.{group}.albert_layers.{place}.")


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--model_name_or_path", required=True, help="pre-trained encoder: folder or hub name")
    add("--layers_per_exit", type=AT_LEAST_1.reader(int), default=2, help="layers of a group")
    add("--output_dir", type=Path, required=True, help="folder of the encoder to write")
    args = parser.parse_args()
    source = args.model_name_or_path
    size = args.layers_per_exit
    config = load_config(source)
    layers = config.num_hidden_layers
    if config.num_hidden_groups < layers:
        raise UserError(f"{source}: its layers share weights; group those of a BERT")
    if layers % size:
        raise UserError(
            f"--layers_per_exit {size}: {source} has {layers} layers, which are no groups of {size}"
        )
    check_place(args.output_dir)
    folder = local_folder(source)
    values = as_albert(read_encoder_config(folder / "config.json"))
    values |= {"model_type": "albert", "architectures": ["AlbertModel"]}
    values |= {"num_hidden_layers": layers // size, "num_hidden_groups": layers // size}
    values["inner_group_num"] = size
    tensors = {}
    for name, tensor in read_weights(folder, {}).items():
        tensors[grouped_name(name, size)] = tensor.contiguous()
    output = RunFolder(args.output_dir)
    output.write_json("config.json", values)
    output.write("model.safetensors", lambda file: file.write(save(tensors)))
    load_tokenizer(source).save_pretrained(args.output_dir)
    print(f"{args.output_dir}: {layers // size} groups of {size} layers")


if __name__ == "__main__":
    run_script(main)
