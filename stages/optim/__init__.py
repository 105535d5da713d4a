"""AdamW on BF16 masters: 8-bit states, stochastic rounding, clipping, schedules. Uses `contract`."""
