"""Keeps the model, its inputs and the process as they were before the run."""
