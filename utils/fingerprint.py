"""Fingerprints: is this the same run, are these the same data? No torch here."""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from modeling.loading.files import file_hash


def fingerprint(*values: Any) -> str:
    """SHA-256 of `values` in this order: of a Path by its file's content, of others by `repr`.

    A NumPy array's `repr` leaves elements out: give its bytes.
    """
    digest = hashlib.sha256()
    for value in values:
        known = file_fingerprint(value) if isinstance(value, Path) else value
        digest.update(known if isinstance(known, bytes) else repr(known).encode())
    return digest.hexdigest()


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file."""
    return {"size": path.stat().st_size, "sha256": file_hash(path)}


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], ignore: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Find the keys whose values are not as `before`, with both values.

    A key that one of the two lacks is no difference: another version may have written it.
    """
    return {
        key: (before[key], now[key])
        for key in now
        if key in before and key not in ignore and before[key] != now[key]
    }
