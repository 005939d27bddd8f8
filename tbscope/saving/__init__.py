"""Writes graphs into files, in the form that the end of the name tells, and into notebooks."""
