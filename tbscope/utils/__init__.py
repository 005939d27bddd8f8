"""Helpers that are independent of graphs: options, validation, files, warnings, components."""
