"""Training: everything that changes weights, and what a training leaves on disk."""
