"""What the models and the scripts share, without torch: errors, keys, settings, files, threads."""
