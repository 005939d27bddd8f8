"""Graphs that stand in event files, and in directories of them."""
