"""The training step at full size: hand-written backward, shared buffers, fused kernels, one CUDA graph a
sequence length.
"""
