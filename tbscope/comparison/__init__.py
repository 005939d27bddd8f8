"""Comparison of two graphs, described in text, and of a graph with its lock file."""
