"""Passes: what changes a graph in place before it is drawn, on a copy that the pipeline made."""
