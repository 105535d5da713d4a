"""Qwen3: config, network, KV cache, prompt templates, batches of rows. Uses nvfp4, process, contract."""
