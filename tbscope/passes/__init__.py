"""Passes that change a graph in place before it is drawn; the pipeline hands them a copy."""
