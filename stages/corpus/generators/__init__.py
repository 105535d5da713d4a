"""Generators of the corpus: each module gives its samples. Uses the phrases."""
