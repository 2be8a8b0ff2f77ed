"""What a table's rows say about each other: texts in train and dev, and labels that disagree."""

from collections.abc import Iterable, Iterator

from glue.splits import Example, Label
from glue.tasks import Task


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
        return remarks


def text_hash(example: Example) -> int:
    """Hash an example's texts."""
    second = example.text_b.strip() if example.text_b is not None else None
    return hash((example.text_a.strip(), second))
