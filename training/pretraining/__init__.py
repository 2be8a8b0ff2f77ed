"""Pre-training on plain text: masked words and the order of sentences."""
