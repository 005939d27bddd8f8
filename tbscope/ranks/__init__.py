"""Graphs of many ranks: gathering them from several processes, and merging them into one graph."""
