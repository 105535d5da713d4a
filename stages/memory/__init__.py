"""Peak memory of a training as arithmetic, without torch. Uses `contract`, and `weights` for entry names."""
