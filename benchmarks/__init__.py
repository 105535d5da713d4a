"""Measurements on a GPU machine. Each prints one table and writes one JSON."""
