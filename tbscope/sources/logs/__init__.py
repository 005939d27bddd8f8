"""Graphs in event files, and in directories of event files."""
