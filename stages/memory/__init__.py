"""Peak memory of a training as arithmetic, before anything is loaded. No torch. Uses the contract."""
