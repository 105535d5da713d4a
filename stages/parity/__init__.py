"""Compares the two inference paths of a weight. Uses weights, qwen3, nvfp4, process and the contract."""
