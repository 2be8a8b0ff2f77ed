"""A model's answers to a data set: given, measured, swept over exit settings, reported, drawn."""
