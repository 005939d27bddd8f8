"""Module calls as functions: those with the same body share one definition."""
