"""What a recipe means for a training: configuration keys, learning rates and weight decay."""

import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from modeling.errors import UserError
from modeling.keys import RECIPES, nearest_names

# Parameters with a learning rate of their own: how their names begin, and the key of the model's
# configuration that holds the rate. Without a value there, they learn at everybody's rate.
OWN_RATES = {
    "exit_weights": "w_lr",  # W, which weighs the losses of ELBERT's exits
    "ponder.": "lambda_lr",  # the halting head of a ponder model
}
EXITS = "albert.encoder.exit_out_"  # poolers and classifiers, which learn at `exit_lr_factor`
# How the names of one layer's parameters begin, and those of what all layers read: embeddings, and
# the bias of relative positions.
LAYER = re.compile(r"albert\.(?:(?!embed).)*?\.\d+\.")
BELOW = re.compile(r"albert\..*?(embed|relative_attention_bias|rel_pos_bias)")
WRAPPED = "base_model.model."  # how PEFT's names begin
CONSTANT = "exit_weights"  # whose rate follows no schedule, and whose gradients are not clipped
NOT_DECAYED = ("bias", "LayerNorm.weight", "layer_norm.weight", "exit_weights")  # ends of names


def recipe(name: str = "recommended", model_type: str = "elbert") -> dict[str, Any]:
    """Return the configuration keys of a recipe, to pass to `load_pretrained`.

        model, _ = elbert.load_pretrained("bert", **elbert.recipe(), num_labels=2)

    Args:
        name: "recommended", the keys that measured best; "published", those of the papers, which
            are the defaults, so that the dict is empty; or "add_exits", for a fine-tuned classifier
            that keeps its head.
        model_type: the mode.

    Raises:
        UserError: there is no recipe of this name, or it has no keys for this mode.
    """
    if name not in RECIPES:
        raise UserError(f"recipe {name!r}: {nearest_names(name, list(RECIPES))}")
    by_mode = RECIPES[name]
    if by_mode and model_type not in by_mode:
        raise UserError(f"recipe {name!r} is of the modes {', '.join(by_mode)}")
    return dict(by_mode.get(model_type, {}))


def parameter_groups(
    model: PreTrainedModel, learning_rate: float, weight_decay: float = 0.01
) -> list[dict[str, Any]]:
    """Sort a model's parameters into groups with one learning rate and one weight decay each.

        groups = elbert.parameter_groups(model, learning_rate=1e-4)
        trainer = Trainer(model, optimizers=(torch.optim.AdamW(groups), None), ...)

    Biases and layer norms have no weight decay. Exits learn at `exit_lr_factor` times the rate, a
    halting head at `lambda_lr`, the learned weights of the exits' losses at `w_lr`, and each layer
    at `layer_lr_decay` times the rate of the next deeper one, with embeddings below the first:
    these are keys of the model's configuration.

    Args:
        model: a model of any mode, or PEFT's model of it.
        learning_rate: the rate of all other parameters.
        weight_decay: the decay of all other parameters.

    Returns:
        Parameter groups for an optimiser of torch. The first two have `learning_rate`, with and
        without decay. Each group also says whether it `decays`, and whether its rate is `constant`,
        whatever the schedule.
    """
    # By how their names begin, where they have a rate of their own, and by whether they decay. The
    # order of the groups is that of the state in a checkpoint.
    members: dict[tuple[str, bool], list[nn.Parameter]] = {("", True): [], ("", False): []}
    for name, parameter in model.named_parameters():
        prefix = own_rate_prefix(name.removeprefix(WRAPPED), model.config)
        decays = not name.endswith(NOT_DECAYED)
        members.setdefault((prefix, decays), []).append(parameter)
    groups = []
    for (prefix, decays), parameters in members.items():
        rate = learning_rate_of(prefix, model.config, learning_rate)
        groups.append(
            {
                "params": parameters,
                "weight_decay": weight_decay if decays else 0.0,
                "decays": decays,
                "lr": rate,
                "constant": prefix == CONSTANT,
            }
        )
    return groups


def own_rate_prefix(name: str, config: object) -> str:
    """Find how the name of a parameter with a learning rate of its own begins; "" without one."""
    for prefix, key in OWN_RATES.items():
        if name.startswith(prefix) and getattr(config, key, None) is not None:
            return prefix
    if name.startswith(EXITS):
        return EXITS if getattr(config, "exit_lr_factor", 1.0) != 1 else ""
    if getattr(config, "layer_lr_decay", 1.0) != 1:
        beginning = LAYER.match(name) or BELOW.match(name)
        return beginning.group() if beginning else ""
    return ""


def learning_rate_of(prefix: str, config: Any, learning_rate: float) -> float:
    """Return the learning rate of the parameters that `own_rate_prefix` sorts under `prefix`."""
    if not prefix:
        return learning_rate
    if prefix == EXITS:
        return learning_rate * config.exit_lr_factor
    if prefix in OWN_RATES:
        return getattr(config, OWN_RATES[prefix])
    # Clark et al. (2020), ELECTRA: the last layer learns at the rate, embeddings below the first.
    layer = int(prefix.split(".")[-2]) if LAYER.match(prefix) else -1
    return learning_rate * config.layer_lr_decay ** (config.num_hidden_layers - 1 - layer)
