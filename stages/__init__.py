"""What computes: weight file, NVFP4, Qwen3, optimizer, training, probing. Runs on a bare GPU machine."""

import os

# Threads that spin while they wait starve each other as soon as a second program computes on the same cores: on 2 cores a
# training step took 26.7 s beside two others, and 0.87 s with threads that sleep. It must be said before torch loads OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
