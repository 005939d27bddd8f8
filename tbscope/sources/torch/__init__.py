"""Code that all sources of torch share: operations, call signatures, pytrees, FLOPs formulas."""
