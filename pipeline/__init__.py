"""Decides, watches, records. No torch: it starts in half a second, and speaks with `stages` through files."""
