"""What tests of hostile files share: values to try, and what came of trying one."""

import json

from hypothesis import strategies as st

from modeling import UserError
from tests.conftest import JSON, tiny_config

NEAR = st.integers(-2, 40) | st.sampled_from([0.5, 1.0, 2.0, "bias_2", "lead", "gelu", "relu"])
VALUES = NEAR | JSON
KNOWN = sorted(json.loads(tiny_config().to_json_string(use_diff=False)))


def tried(function, *arguments):
    """The function's answer, or the error that it refused with in the project's words."""
    try:
        return function(*arguments)
    except UserError as error:
        return error


def refused(answer) -> bool:
    return isinstance(answer, UserError)


def replaced(value, path: list[int], new):
    """`value` with what lies at `path` (of places, modulo their number) replaced by `new`."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = keys[path[0] % len(keys)]
    inner = replaced(value[key], path[1:], new)
    if isinstance(value, dict):
        return {**value, key: inner}
    return [inner if i == key else x for i, x in enumerate(value)]
