"""Tells MLflow what the journal and the attempts' folders hold. Uses the journal and core."""
