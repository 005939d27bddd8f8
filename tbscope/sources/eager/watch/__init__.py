"""Sees what runs: operations, kernels, module calls and scopes by hand."""
