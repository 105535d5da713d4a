"""Texts of the corpus: words, facts, questions, answers. Uses the templates of `stages.corpus.examples`."""
