"""Experiments, apart from what users run: scripts, recorded answers, generated pages.

published            the published tables, and how each is measured: the work of reproduce.py
comparison           exit rules and networks at equal cost: analysis, train, report
compare_pretraining  evaluations of pre-trained models side by side
recorded             answers of all layers of trained models, with each run's flags
"""
