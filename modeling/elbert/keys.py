"""ELBERT's keys, as published, and two of our own: window_score, and patience's thres_name."""

from ..keys import KeyTable, bool_key, float_key, int_key, path_keys, str_key

# As in RULES of rules.py, which loads torch.
RULE_NAMES = ("entropy", "logits", "max_prob", "bias_1", "bias_2", "bias_3", "patience")
POOLER_INPUTS = ("cls", "cls-mean", "cls-max", "mean", "max", "mean-max")

EXIT_KEYS = {
    "thres_name": str_key("bias_1", "exit rule", choices=RULE_NAMES),
    "exit_thres": float_key(
        0.1,
        "threshold of the rule; for entropy and bias_1 to 3, of the normalised entropy",
        minimum=0,
        maximum=1,
        grid="0:1:0.02",
    ),
    "cnt_thres": int_key(
        8,
        "confidence window, in layers; at most num_hidden_layers",
        minimum=1,
        counts_layers=True,
        grid="1:N",
    ),
    "margin": float_key(
        0.0,
        "a class leads when p_top1 − p_top2 > 2·margin",
        minimum=0,
        maximum=0.5,
        grid="0,0.05,0.1",
    ),
    "range_tmp": float_key(
        0.2,
        "bias_3: how far the probability may move within the window; for regression, bias_1 to 3: "
        "how far the value may move",
        minimum=0,
        grid="0.05,0.1,0.2",
    ),
    "window_score": str_key(
        "lead",
        "what the window follows: the leading class, or class 0 as in ELBERT's published code",
        choices=("lead", "class0"),
    ),
}

ELBERT_KEYS = {
    **EXIT_KEYS,
    **path_keys("albert"),
    "weight_name": str_key(
        "dyn", "weights of the exits' losses: learned or equal", choices=("dyn", "equal")
    ),
    "w_init": float_key(4.0, "initial W of the learned weights σ(W)"),
    "w_lr": float_key(0.01, "learning rate of W", minimum=0),
    "pooler_input": str_key(
        "cls", "what an exit reads of the layer's states", choices=POOLER_INPUTS, shapes=True
    ),
    "use_out_pooler": bool_key(
        True, "exits share ALBERT's pooler (false: one pooler per exit)", shapes=True
    ),
    "num_exit_layers": int_key(
        1,
        "number of exit classifiers; with 1, all layers share it",
        minimum=1,
        counts_layers=True,
        shapes=True,
    ),
    "use_fc2": bool_key(False, "two-layer exit classifier", shapes=True),
    "fc_size1": int_key(
        None,
        "width of the exit's pooled state",
        minimum=1,
        maximum=65536,
        shapes=True,
    ),
    "fc_size2": int_key(
        None, "width between classifier1 and classifier2", minimum=1, maximum=65536, shapes=True
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
