"""The modes of --model_type with their configuration keys, and settings made of these. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from modeling.act.keys import TABLE as ACT
from modeling.elbert.keys import TABLE as ELBERT
from modeling.keys import KeyTable
from modeling.ponder.keys import TABLE as PONDER

if TYPE_CHECKING:
    from transformers import AlbertConfig

Setting = dict[str, Any]  # keys of an exit_config.json: the rule's name and what it reads

# Named as in --model_type. A config.json has the same names, but for ELBERT's: `elbert` there means
# `albert`, as any unknown one does.
MODE_KEYS = {
    "albert": ELBERT,
    "ponder_albert": PONDER,
    "albert_act": ACT,
}


def mode_name(model_type: object) -> str:
    """Name the mode whose models have this model_type in config.json."""
    return str(model_type) if str(model_type) in MODE_KEYS else "albert"


def keys_of(model_type: object) -> KeyTable:
    """Look up the keys of a config.json with this model_type."""
    return MODE_KEYS[mode_name(model_type)]


def describe(setting: Setting, name_key: str) -> str:
    """Write "bias_1, exit_thres 0.3, cnt_thres 4": for messages and titles."""
    keys = [f"{key} {value:g}" for key, value in setting.items() if key != name_key]
    return ", ".join([setting[name_key], *keys])


@contextmanager
def keys_in_force(config: AlbertConfig, setting: Setting) -> Iterator[None]:
    """Put `setting` into force; on leaving, the exit keys are again what they were."""
    before = config.exit_keys()
    config.update({**before, **setting})
    try:
        yield
    finally:
        config.update(before)
