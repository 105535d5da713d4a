"""Composes the settings with Hydra, builds and checks them and the files they name. Uses guard and core."""
