"""Composes the settings with Hydra, reads them into types, and checks them and the files they name. Uses
guard and core.
"""
