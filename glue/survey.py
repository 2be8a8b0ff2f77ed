"""What a table's rows say about each other: texts in train and dev, and labels that disagree."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from glue.splits import Example, Label, parse_number
from glue.tasks import Task
from modeling.labels import without_case


class TextSurvey:
    """Counts of equal texts, kept while the examples of train and dev are read.

    Only hashes are kept, 8 bytes a text. Texts are equal with their blanks at both ends left out.
    """

    def __init__(self) -> None:
        self.labels_of_text: dict[int, Label] = {}  # the first label of each training text
        self.contradicted: set[int] = set()
        self.repeated_rows = 0
        self.dev_texts: list[int] = []

    def train(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Pass training examples on, and count them."""
        for example in examples:
            text = text_hash(example)
            if text in self.labels_of_text:
                self.repeated_rows += 1
                if self.labels_of_text[text] != example.label:
                    self.contradicted.add(text)
            self.labels_of_text.setdefault(text, example.label)
            yield example

    def dev(self, examples: Iterable[Example]) -> None:
        """Count dev examples."""
        self.dev_texts.extend(map(text_hash, examples))

    def remarks(self, task: Task) -> list[str]:
        """List what the user should know of the rows before a training."""
        remarks = []
        shared = sum(text in self.labels_of_text for text in self.dev_texts)
        if shared:
            remarks.append(
                f"{shared} of {len(self.dev_texts)} dev rows have a text that is also a training "
                "row: dev metrics count what the model was trained on"
            )
        if self.repeated_rows:
            remarks.append(f"{self.repeated_rows} training rows repeat the text of another")
        if self.contradicted:
            remarks.append(f"{len(self.contradicted)} training texts have more than one label")
        joined = [label for label in task.labels if ";" in label]
        if joined and not task.multi_label:
            remarks.append(
                f"{len(joined)} labels have a semicolon, such as {joined[0]!r}: each is one class; "
                "--label_separator ';' reads several labels"
            )
        for spellings in alike(task.labels):
            remarks.append(
                f"the labels {', '.join(map(ascii, spellings))} differ in case, accents or "
                "invisible characters alone, and are classes of their own: if they are one, "
                "correct the table"
            )
        numbers = [number for number in map(parse_number, task.labels) if number is not None]
        words = [label for label in task.labels if parse_number(label) is None]
        has_fractions = any(number % 1 for number in numbers)
        if has_fractions and words and len(numbers) > len(words):
            remarks.append(
                f"{len(numbers)} labels are numbers, some with a fraction, but {words[0]!r} is "
                "not, so that each is a class of its own: for a regression, take such rows out"
            )
        return remarks


def alike(labels: Sequence[str]) -> list[list[str]]:
    """Group the labels that are spelt alike, but for case, form and characters without a shape."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        seen = "".join(x for x in label if unicodedata.category(x) != "Cf")
        groups.setdefault(without_case(seen), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def text_hash(example: Example) -> int:
    """Hash an example's texts."""
    second = example.text_b.strip() if example.text_b is not None else None
    return hash((example.text_a.strip(), second))
