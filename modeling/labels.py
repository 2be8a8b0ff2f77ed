"""Match two sets of labels by their names. Loads no torch."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import UserError

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")
# GLUE's classes in the order of ELBERT's published code, which saves its models without names.
GLUE_LABELS = {
    **dict.fromkeys(("cola", "sst-2", "mrpc", "qqp", "wnli"), BINARY),
    **dict.fromkeys(("rte", "qnli"), ENTAILMENT),
    **dict.fromkeys(("mnli", "mnli-mm", "ax"), NLI),
}
MOST_SHOWN = 20  # labels in an error
# Unicode's categories of control characters, halves of characters, and ends of lines.
NOT_IN_LABELS = ("Cc", "Cs", "Zl", "Zp")
PLACEHOLDER = r"LABEL_(\d+)"  # what transformers calls a class without a name


def match_labels(
    wanted: Sequence[str],
    given: Sequence[str],
    *,
    wanted_by: str,
    given_by: str,
    in_order: bool = False,
    may_be_fewer: bool = False,
) -> list[int]:
    """Return the number among `given` of each label in `wanted`.

    Names match exactly or, where there is no such name, without regard to case; numbers match by
    their values ("1" and "1.0"). Placeholders, LABEL_0 and so on, match the numbers 0 and so on.

        match_labels(["No", "Yes"], ["yes", "no"], wanted_by="the table", given_by="the model")
        # [1, 0]

    Args:
        wanted, given: the two sets.
        wanted_by, given_by: whose they are, for errors.
        in_order: whether sets of the same size that have no name in common match by position.
        may_be_fewer: whether `given` may have labels that nobody wants.

    Raises:
        UserError: no label, or not every label, has exactly one counterpart. It lists both sets.
    """
    both = f"{given_by} has the labels {shown(given)}; {wanted_by} has {shown(wanted)}"
    matches = matches_by_name(wanted, given)
    if not any(matches):
        matches_as_numbers = matches_by_name(as_numbers(wanted), as_numbers(given))
        if all(matches_as_numbers):
            matches = matches_as_numbers
    if not any(matches):
        if len(wanted) != len(given):
            raise UserError(f"{both}: they have no name in common")
        if in_order:
            return list(range(len(wanted)))
        pairs = zip(given, wanted, strict=True)
        renamings = shown([f"{given_label} as {label}" for given_label, label in pairs])
        raise UserError(
            f"{both}: they have no name in common. If they mean the same in this order, give "
            f"--labels_in_order, which takes {renamings}"
        )
    unmatched = [label for label, numbers in zip(wanted, matches, strict=True) if not numbers]
    if unmatched:
        raise UserError(f"{both}: {shown(unmatched)} has no counterpart; rename the labels")
    order = [numbers[0] for numbers in matches]
    is_ambiguous = any(len(numbers) > 1 for numbers in matches) or len(set(order)) < len(order)
    if is_ambiguous:
        raise UserError(f"{both}: some differ only by case or spelling; rename the labels")
    if len(order) < len(given) and not may_be_fewer:
        raise UserError(f"{both}: they are not the same number of labels")
    return order


def matches_by_name(wanted: Sequence[str], given: Sequence[str]) -> list[list[int]]:
    """List, for each wanted label, the numbers of the given ones that match it."""
    matches = []
    for label in wanted:
        numbers = [number for number, other in enumerate(given) if other == label]
        if not numbers:
            loose_name = without_case(label)
            numbers = [n for n, other in enumerate(given) if without_case(other) == loose_name]
        matches.append(numbers)
    return matches


def without_case(label: str) -> str:
    """Return what the spellings of a label have in common: of "Yes" and "YES", of "1" and "1.0"."""
    text = unicodedata.normalize("NFC", label.strip().casefold())
    try:
        number = float(text)
    except ValueError:
        return text
    return str(number) if math.isfinite(number) else text


def as_numbers(labels: Sequence[str]) -> list[str]:
    """Return 0, 1, … for the placeholders LABEL_0, LABEL_1, …; other labels as they are."""
    if not are_placeholders(labels):
        return list(labels)
    return [label.removeprefix("LABEL_") for label in labels]


def are_placeholders(labels: Sequence[str]) -> bool:
    """Tell whether labels are HF's names of classes without names."""
    return all(re.fullmatch(PLACEHOLDER, label) for label in labels)


def check_characters(labels: Sequence[str], place: str | Path) -> None:
    """Raise UserError for a label with a control character or a line break.

    A console would obey it, and a line of a file would end within the label.

    place: where the labels are written, for the error.
    """
    for label in labels:
        if any(unicodedata.category(character) in NOT_IN_LABELS for character in label):
            raise UserError(
                f"{place}: the label {ascii(label)[:100]} has a control character or a line "
                "break, which a label cannot have: rename it there"
            )


def stored_labels(config: Mapping[str, Any]) -> list[str]:
    """List the names of the classes in the content of a config.json; [] where it has none.

    They are those of id2label, or of label2id where that is missing. Whoever makes a configuration
    of the content refuses what is damaged; such labels are none here.
    """
    by_name, by_number = config.get("label2id"), config.get("id2label")
    if not by_number and isinstance(by_name, Mapping):
        by_number = {number: name for name, number in by_name.items()}
    if not isinstance(by_number, Mapping):
        return []
    try:
        names = {int(number): str(name) for number, name in by_number.items()}
    except (TypeError, ValueError):
        return []
    return [names[number] for number in sorted(names)]


def shown(labels: Sequence[str]) -> str:
    """List labels for an error, the first twenty of them."""
    listed = ", ".join(labels[:MOST_SHOWN])
    return listed if len(labels) <= MOST_SHOWN else f"{listed}, … ({len(labels)} in all)"
