"""Fingerprints: are these the same values, files or settings as before? Loads no torch."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modeling.files import file_hash


def fingerprint(*values: Any) -> str:
    """Return the SHA-256 of `values` in this order.

    A Path counts by its file's content, bytes as they are, everything else by its `repr`. The
    `repr` of a NumPy array leaves elements out: give its bytes.
    """
    digest = hashlib.sha256()
    for value in values:
        content = file_fingerprint(value) if isinstance(value, Path) else value
        if not isinstance(content, bytes):
            content = repr(content).encode()
        digest.update(content)
    return digest.hexdigest()


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Return the size of a file in bytes, and its SHA-256."""
    return {"size": path.stat().st_size, "sha256": file_hash(path)}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Find the keys whose values are not as `before`; return both values of each, the old first.

    A key that one of the two lacks is no difference: another version may have written it.
    """
    changed = {}
    for key, value in now.items():
        if key in before and before[key] != value:
            changed[key] = (before[key], value)
    return changed
