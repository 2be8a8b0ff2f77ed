"""What models and scripts share, without torch: errors, keys, settings, files, threads."""
