"""One training from its request to its exported weight: `python -m stages.train`. Uses every other room but
inference and corpus.
"""
