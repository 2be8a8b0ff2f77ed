"""ELBERT's keys, as published, and two of our own: window_score, and patience's thres_name."""

from ..keys import Flag, KeyTable, Number, Text, Whole, places
from .rule_table import RULES

POOLER_INPUTS = ("cls", "cls-mean", "cls-max", "mean", "max", "mean-max")

EXIT_KEYS = {
    "thres_name": Text(default="bias_1", meaning="exit rule", choices=RULES),
    "exit_thres": Number(
        default=0.1,
        meaning="threshold of the rule; entropy and bias_1 to 3: of normalised entropy",
        minimum=0,
        maximum=1,
        grid="0:1:0.02",
    ),
    "cnt_thres": Whole(
        default=8,
        meaning="window size, in layers; at most num_hidden_layers",
        minimum=1,
        counts_layers=True,
        grid="1:N",
    ),
    "margin": Number(
        default=0.0,
        meaning="a class leads when p_top1 − p_top2 > 2·margin",
        minimum=0,
        maximum=0.5,
        grid="0,0.05,0.1",
    ),
    "range_tmp": Number(
        default=0.2,
        meaning="bias_3: how far p may move within the window; regression: the value, of bias_1 "
        "to 3",
        minimum=0,
        grid="0.05,0.1,0.2",
    ),
    "window_score": Text(
        default="lead",
        meaning="what the window follows; class0: as ELBERT's published code",
        choices=("lead", "class0"),
    ),
}

ELBERT_KEYS = {
    **EXIT_KEYS,
    **places("albert"),
    "weight_name": Text(
        default="dyn",
        meaning="weights of the exits' losses: learned or equal",
        choices=("dyn", "equal"),
    ),
    "w_init": Number(default=4.0, meaning="initial W of the learned weights σ(W)"),
    "w_lr": Number(default=0.01, meaning="learning rate of W", minimum=0),
    "pooler_input": Text(
        default="cls", meaning="what an exit sees of the layer", choices=POOLER_INPUTS, shapes=True
    ),
    "use_out_pooler": Flag(
        default=True,
        meaning="exits share ALBERT's pooler (false: one pooler per exit)",
        shapes=True,
    ),
    "num_exit_layers": Whole(
        default=1,
        meaning="number of exit classifiers; 1 is shared by all layers",
        minimum=1,
        counts_layers=True,
        shapes=True,
    ),
    "use_fc2": Flag(default=False, meaning="two-layer exit classifier", shapes=True),
    "fc_size1": Whole(
        default=None,
        meaning="width of the exit's pooled state (hidden_size)",
        minimum=1,
        maximum=65536,
        shapes=True,
    ),
    "fc_size2": Whole(
        default=None,
        meaning="width between classifier1 and classifier2",
        minimum=1,
        maximum=65536,
        shapes=True,
    ),
}

# No published run turns these on.
INERT_KEYS = dict.fromkeys(
    (
        "exit_layer_name shared num_teachers cls_hidden_size cls_num_attention_heads kd_T kd_range "
        "kd_T_s kd_T_l kd_T_idx_s num_exit idx_lst e_label_smoothing thres_lst exit_weight_lst "
        "exit_w output_attentions"
    ).split(),
    "",
) | {
    "kd_enable": "distillation",
    "use_dml": "mutual learning",
    "use_label_smooth": "label smoothing",
}

TABLE = KeyTable(ELBERT_KEYS, EXIT_KEYS, INERT_KEYS)
