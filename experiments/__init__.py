"""Experiments, apart from what users run: published tables, the comparison of methods."""
