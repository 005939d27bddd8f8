"""Measures times and memory, in further runs."""
