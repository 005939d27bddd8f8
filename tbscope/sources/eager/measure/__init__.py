"""Measurement of times and memory, in further runs."""
