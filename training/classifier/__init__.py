"""make_classifier.py: from a table to a classifier that exits early. Begin with `steps.py`."""
