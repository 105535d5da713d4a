"""Starts one guarded `stages` process, follows its events, and shows them. Uses guard and core."""
