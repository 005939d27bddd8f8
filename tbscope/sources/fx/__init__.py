"""Graphs of programs that torch.export or torch.fx has made."""
