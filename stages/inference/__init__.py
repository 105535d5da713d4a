"""Answers of a weight: decoding in batches, probes, chat. Uses weights and qwen3."""
