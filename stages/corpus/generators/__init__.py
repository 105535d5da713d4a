"""Generators of the corpus: each module makes its examples. Uses the phrases."""
