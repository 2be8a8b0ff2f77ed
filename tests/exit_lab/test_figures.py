"""Figures: lines that are true, of what was chosen on the other half. tests/robustness opens the
explorer in a browser."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from exit_lab.choice import split
from exit_lab.compare import frontier_set
from exit_lab.explorer import explorer_page
from exit_lab.figures import curve_of
from tests.exit_lab.builders import EVIL, SWEPT_RULES, explored, swept


def test_a_curve_is_what_was_chosen_on_the_other_half():
    """Two models: at each cost the mean of what each would use, by its report part's cost."""
    sweeps = [swept(2, "rte", examples=120)[0]]
    sweeps.append(dataclasses.replace(sweeps[0], predictions=np.roll(sweeps[0].predictions, 1, 1)))
    found = frontier_set(sweeps, split(120, 0.5, 1), draws=50, seed=0)
    limits = np.unique(np.concatenate([front.allowed for front in found.frontiers["bias_1"]]))
    values = []
    for limit in limits:
        chosen = [front.allowed <= limit + 1e-9 for front in found.frontiers["bias_1"]]
        if all(map(np.any, chosen)):
            last = [np.flatnonzero(one)[-1] for one in chosen]
            fronts = zip(found.frontiers["bias_1"], last, strict=True)
            values.append(np.mean([front.metric[number, 0] for front, number in fronts]))
    kept = [values[0], *(new for old, new in pairwise(values) if new != old)]  # no idle ink
    assert curve_of(found, "bias_1").metric == pytest.approx(kept)
    for name in SWEPT_RULES:
        assert (np.diff(curve_of(found, name).cost) >= 0).all()


def test_the_explorers_texts_and_title_are_escaped():
    page = explorer_page(*explored("rte"), "<i>" + EVIL)
    assert "default-src 'none'" in page  # the network is asked nothing
    assert page.count("</script>") == 2  # the data's and the program's own
    assert "<title>&lt;i&gt;&lt;/script&gt;" in page
