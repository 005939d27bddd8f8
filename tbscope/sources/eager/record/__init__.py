"""Turns the events of a run into a graph."""
