"""Adaptive Depth: ALBERT that stops every token for itself."""
