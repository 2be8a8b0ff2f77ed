"""experiments/compare_pretraining.py: evaluations side by side."""

import json
from pathlib import Path

from experiments.compare_pretraining import main


def write_results(directory: Path, **changed: object) -> Path:
    directory.mkdir()
    results = {"mlm_acc": 0.4, "sop_acc": 0.6, "tau": 1e-3, "max_updates": 6}
    updates = {"All tokens": 2.25, "[CLS]": 4.0}
    results = {**results, "updates": updates, **changed}
    (directory / "eval_results.json").write_text(json.dumps(results))
    return directory


def test_pretrained_models_side_by_side(script, tmp_path):
    dense = write_results(tmp_path / "dense", updates={}, mlm_acc=0.5, tau=0.0)
    act = write_results(tmp_path / "act")
    done = script(main, dense, act).done()
    assert done.out == (
        "| | dense | act |\n|---|---|---|\n"
        "| τ | | 0.001 |\n"
        "| Max iterations | 6 | 6 |\n"
        "| mlm (Acc.) | 50.0 | 40.0 |\n"
        "| sop (Acc.) | 60.0 | 60.0 |\n"
        "| All tokens | | 2.25 |\n"
        "| [CLS] | | 4.00 |\n"
    )
