"""Watches operations, kernels, module calls and scopes by hand as they run."""
