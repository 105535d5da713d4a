"""NVFP4 weights: E2M1 codes with one E4M3 scale for every 16 columns."""
