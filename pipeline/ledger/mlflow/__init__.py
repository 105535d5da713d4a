"""Sends MLflow what the journal and the attempts' folders hold. Uses the journal, DevLog and core."""
