"""GLUE and tasks like it: files, columns, labels, metrics, token ids and submission files.

tasks       each task's files, columns, labels, metric and submission file
custom      the user's own task, from its files
tables      strict reading of text tables
features    from examples to padded batches
"""
