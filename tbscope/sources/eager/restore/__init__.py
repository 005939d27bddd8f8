"""Snapshots of the model, its inputs and the process before a run, restored after it."""
