"""ELBERT: exit classifiers, exit rules and the model."""
