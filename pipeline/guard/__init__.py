"""Watches the memory of one command and ends it past its limit: `python -m pipeline.guard`. Uses core."""
