"""The keys of PonderNet and PALBERT models."""

from ..keys import KeyTable, float_key, int_key, path_keys, str_key

PONDER_EXIT_KEYS = {
    "exit_criteria": str_key(
        "sample",
        "when an example exits: by a draw (PonderNet), by the halting CDF (PALBERT), or never "
        "(mean of all layers)",
        choices=("sample", "threshold", "expectation"),
    ),
    "exit_thres": float_key(
        0.5,
        "for exit_criteria threshold: exit when the halting CDF exceeds it",
        minimum=0,
        maximum=1,
        # Early layers of a trained model may halt with a hundredth of a percent.
        grid="0:0.002:0.0001,0.002:0.02:0.001,0.02:1:0.02",
    ),
}

PONDER_KEYS = {
    **PONDER_EXIT_KEYS,
    "target_halt_probability": float_key(
        0.2, "λ_p of the prior: 1/λ_p layers are expected", minimum=1e-6, maximum=1
    ),
    "kl_penalty_factor": float_key(5e-3, "weight of the KL to the prior in the loss", minimum=0),
    "prior_type": str_key(
        "geometric", "shape of the prior over layers", choices=("geometric", "normal")
    ),
    "halt_normalization": str_key(
        "renormalise",
        "where the probability left after the last layer goes: to all layers, or to the last "
        "(its λ is 1)",
        choices=("renormalise", "last_layer"),
    ),
    "lambda_layer_arch": str_key(
        "mlp",
        "halting head: PonderALBERT's (mlp), or PALBERT's on the layer's state (linear), with the "
        "previous one's (linear_cat, linear_diff)",
        choices=("mlp", "linear", "linear_cat", "linear_diff"),
        shapes=True,
    ),
    "num_lambda_layers": int_key(
        3, "depth of PALBERT's halting head", minimum=1, maximum=64, shapes=True
    ),
    "lambda_lr": float_key(
        None, "learning rate of the halting head; without it, the model's own", minimum=0
    ),
    **path_keys("ponder_albert"),
}

TABLE = KeyTable(PONDER_KEYS, PONDER_EXIT_KEYS)
