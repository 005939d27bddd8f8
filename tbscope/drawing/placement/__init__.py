"""Placement: the box in which each node and each call is drawn."""
