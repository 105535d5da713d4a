"""Asks a weight the probes and judges its answers. Uses processes, guard and core."""
