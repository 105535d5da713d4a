"""Shared by all `stages` processes: main, events, files that appear whole, memory cap. Uses the contract."""
