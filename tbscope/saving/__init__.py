"""Saved graphs: files in the form of their name's ending, and frames in notebooks."""
