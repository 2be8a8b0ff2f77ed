"""What a model is made of: parameters by part, and the operations up to each exit."""

from collections import Counter

from transformers import PreTrainedModel

from modeling.configuration import AdaptiveConfig, EarlyExitConfig
from modeling.errors import UserError
from modeling.keys import training_keys

PARTS = ("embeddings", "layers", "exits and heads")


def summary(model: PreTrainedModel, length: int = 128) -> str:
    """Describe a model: its keys, its parameters, and what an exit after each layer costs.

        print(elbert.summary(model, length=64))

    Args:
        model: a model of any mode.
        length: length, in tokens, of the text whose operations are counted.

    Returns:
        Several lines of text. Of the keys, those of architecture and training that differ from the
        defaults, such as self_distillation = 0.5. FLOPs count the matrix products, exit checks
        included; a multiplication with its addition counts as two.

    Raises:
        UserError: the model is not one of this library.
    """
    config = model.config
    if not isinstance(config, AdaptiveConfig):
        raise UserError(
            f"{type(model).__name__} is no model of this library: load it by elbert.load_pretrained"
        )
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[part_of(name)] += parameter.numel()
    layers = config.num_hidden_layers
    kind = "shared" if config.num_hidden_groups < layers else "separate"
    lines = [f"{type(model).__name__}: {layers} layers, {kind} weights"]
    keys = training_keys(config.to_dict())
    if keys:
        lines.append(", ".join(f"{name} = {value}" for name, value in keys.items()))
    lines.append(f"{sum(counts.values()):,} parameters")
    lines += [f"  {part}: {counts[part]:,}" for part in PARTS]
    full_depth = config.full_depth_flops(length)
    lines.append(f"a text of {length} tokens: {full_depth / 1e9:.3f} GFLOPs without exits")
    exits = config.exits if isinstance(config, EarlyExitConfig) else range(1, layers + 1)
    for layer in exits:
        flops = config.early_exit_flops(length, layer)
        lines.append(f"  after layer {layer}: {flops / 1e9:.3f} GFLOPs, {flops / full_depth:.1%}")
    return "\n".join(lines)


def part_of(name: str) -> str:
    """Return the part of the model that a parameter belongs to, by its name."""
    modules = name.split(".")
    if "embeddings" in modules or "embedding_hidden_mapping_in" in modules:
        return "embeddings"
    if not {"albert_layer_groups", "albert_layer", "model"}.isdisjoint(modules[:-1]):
        return "layers"
    return "exits and heads"
