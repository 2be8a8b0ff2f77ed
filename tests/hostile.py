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
