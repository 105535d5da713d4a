"""Qwen3: configuration, model, KV cache, generation, prompt templates, loading from a weight file."""
