"""Adaptive Depth: every token has as many layer passes as it needs."""
