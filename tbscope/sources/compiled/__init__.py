"""Graphs that torch.compile captures of a model."""
