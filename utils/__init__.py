"""Helpers that are not about models or tasks.

files        whole-file writing, and how a script ends on a user's error
console      progress bars in a terminal, lines in a log file, tables
fingerprint  is this the same run, are these the same data?
"""
