"""How threads wait, asked of OpenMP itself."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from modeling.runtime import LOOKS, OWN

OPENMP = Path(find_spec("torch").origin).parent / "lib" / "libgomp.so.1"
# Loads the library as torch does, without the rest of torch.
SCRIPT = """
import ctypes, sys
from utils.files import run_script
assert "torch" not in sys.modules
run_script(lambda: ctypes.CDLL(sys.argv[1]))
"""


@pytest.mark.skipif(not OPENMP.exists(), reason="this torch has another OpenMP")
@pytest.mark.parametrize(
    ("own", "looks"),
    [({}, LOOKS), ({"OMP_WAIT_POLICY": "passive"}, 0), ({"GOMP_SPINCOUNT": "77"}, 77)],
)
def test_a_script_waits_briefly_unless_its_user_says_otherwise(own, looks):
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    environment |= own | {"OMP_DISPLAY_ENV": "verbose"}
    command = [sys.executable, "-c", SCRIPT, OPENMP]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{looks}'" in done.stderr
