"""Figures of a graph: costs, totals, notes and the summary."""
