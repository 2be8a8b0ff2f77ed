"""The official files of predictions."""

from glue.tasks import TASKS

# Lines of each file, header included, as the GLUE server asks for them.
OFFICIAL_LINES = {
    "AX.tsv": 1105,
    "CoLA.tsv": 1064,
    "MNLI-m.tsv": 9797,
    "MNLI-mm.tsv": 9848,
    "MRPC.tsv": 1726,
    "QNLI.tsv": 5464,
    "QQP.tsv": 390966,
    "RTE.tsv": 3001,
    "SST-2.tsv": 1822,
    "STS-B.tsv": 1380,
    "WNLI.tsv": 147,
}


def test_the_official_files_have_their_names_and_line_counts():
    assert {task.submission: task.test_lines for task in TASKS.values()} == OFFICIAL_LINES
