"""Overlays: numbers of operations and modules to be drawn, without torch and files."""
