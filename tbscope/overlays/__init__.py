"""Overlays: numbers of operations and modules, to be drawn; knows nothing of torch or files."""
