"""Watching of a run: recorders receive its operations, kernels, module calls and user scopes."""
