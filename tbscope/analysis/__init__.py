"""What is counted and told of a graph: costs, totals, notes and the summary."""
