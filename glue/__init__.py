"""GLUE and tasks like it: files, columns, labels, metrics, token ids. Begin with `tasks.py`.

It imports `modeling`.

tasks       each GLUE task's files, columns, labels and metric
custom      the user's own task, from its files
splits      the examples of a task's train, dev or test file
tables      strict reading of text tables
features    from examples to padded batches
metrics     accuracy, F1, Matthews' and other correlations
submission  the files of predictions that gluebenchmark.com takes
"""
