"""Texts of the corpus: words, facts, questions and answers. Uses the templates of `stages.corpus.examples`."""
