"""Generates the rows that train and probe the nano model, the same bytes everywhere. Uses the contract."""
