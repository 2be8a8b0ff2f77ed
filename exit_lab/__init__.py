"""Record every layer once, then sweep, choose, compare and explore every exit setting."""
