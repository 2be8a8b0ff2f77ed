"""The keys of Adaptive Depth."""

from ..keys import KeyTable, float_key

ACT_EXIT_KEYS = {
    "act_epsilon": float_key(
        0.01, "a token halts at 1 − act_epsilon", minimum=0, maximum=1, open=True
    )
}
ACT_KEYS = {
    **ACT_EXIT_KEYS,
    "tau": float_key(5e-4, "weight τ of the ponder cost in the loss", minimum=0),
}

TABLE = KeyTable(ACT_KEYS, ACT_EXIT_KEYS)
