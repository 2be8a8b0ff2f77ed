"""GLUE and tasks like it: files, columns, labels, metrics, token ids and submission files."""
