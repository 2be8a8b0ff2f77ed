"""Helpers that are not about models or tasks.

files    whole-file writing, fingerprints, and how a script ends on a user's error
console  progress bars in a terminal, lines in a log file, tables
"""
