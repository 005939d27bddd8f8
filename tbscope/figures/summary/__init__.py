"""The table of a graph's modules: shapes, parameters, operations, bytes and times."""
