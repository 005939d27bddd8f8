"""Placement in the module tree of calls whose module is not part of the caller's module."""
