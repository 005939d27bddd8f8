"""Module calls as functions: calls with equal bodies share a definition."""
