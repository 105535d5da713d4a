"""The training step at full size. Uses `optim`, `nvfp4`, `qwen3`, `memory.limits`, `weights`, `contract`.

The backward pass is written by hand: shared ring buffers, fused kernels, one CUDA graph a sequence length.
"""
