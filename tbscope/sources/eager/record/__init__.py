"""Turns what is seen of a run into a graph."""
