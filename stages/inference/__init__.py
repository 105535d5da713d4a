"""Answers of a weight: generation in batches, probes, chat. Uses weights, qwen3, process and the contract."""
