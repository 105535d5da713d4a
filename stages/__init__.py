"""What computes: weight file, NVFP4, Qwen3, optimizer, training, probing. Runs on a bare GPU machine."""

import os

# Threads that spin long while they wait starve each other as soon as a second program computes on the same
# cores. On 2 cores a training step of the nano model took 0.43 s alone and 26.7 s beside two busy programs as
# the library has it; threads that never spin took 1.5 s alone; with this count it took 0.50 s alone and 1.8 s
# beside a busy program. Said before torch loads OpenMP.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
