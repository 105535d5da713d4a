"""Compares both inference paths of a weight: `python -m stages.parity`. Uses weights and qwen3."""
