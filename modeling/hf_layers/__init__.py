"""Encoders of transformers, run one layer at a time by transformers' own modules."""
