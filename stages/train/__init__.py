"""One training, from its request to its exported weight. Uses every other room but inference and corpus."""
