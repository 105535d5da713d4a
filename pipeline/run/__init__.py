"""Carries out an experiment: stages, attempts, the ladder. Uses every other room."""
