"""A model's answers to a data set: given, scored, swept over exit settings, reported, drawn."""
