"""Helpers that know nothing of graphs: messages, validation, files, warnings."""
