"""AdamW for BF16 masters: stochastic rounding, 8-bit states, clipping and updates that run inside backward."""
