"""Experiments, apart from what users run: scripts, recorded answers, generated pages.

recorded             answers of all layers of trained models, with each run's flags
"""
