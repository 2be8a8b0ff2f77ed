"""Running a model over a data set: the three modes, their reports and their pictures."""
