"""Placement in the module tree of calls whose module is not the caller's own."""
