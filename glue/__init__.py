"""GLUE and tasks like it: files, columns, labels, metrics, token ids and submission files.

tasks       each task's files, columns, labels, metric and submission file
metrics     accuracy, F1, Matthews' and other correlations
custom      the user's own task, from its files
tables      strict reading of text tables
features    from examples to padded batches
"""
