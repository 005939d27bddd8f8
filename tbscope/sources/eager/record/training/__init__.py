"""Backward passes, optimizer steps and updates of parameters, as recorded."""
