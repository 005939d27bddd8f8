"""Lossless file formats of a graph; the schema is in docs/forms.md."""
