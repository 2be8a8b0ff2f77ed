"""Where a result comes from, and what of it may leave the machine."""

import sys

from runs.provenance import provenance


def test_passwords_are_not_recorded_and_paths_do_not_leave(monkeypatch):
    url = "postgresql://me:secret@host:5432/db"
    monkeypatch.setattr(sys, "argv", ["/home/me/run_glue.py", "--hp_storage", url, "--x=a b"])
    origin = provenance({"hp_storage": url, "set": [f"a={url}"], "seed": 3}, {"weights": "0a"})
    recorded = origin.as_json()
    assert recorded["command"] == (
        "run_glue.py --hp_storage 'postgresql://me:***@host:5432/db' '--x=a b'"
    )
    hidden = "postgresql://me:***@host:5432/db"
    assert recorded["flags"] == {"hp_storage": hidden, "set": [f"a={hidden}"], "seed": 3}
    assert origin.for_others().keys() == {"weights", "commit", "versions"}
