"""NVFP4 weights: 4-bit codes with one E4M3 scale for every 16 columns. Uses `contract`."""
