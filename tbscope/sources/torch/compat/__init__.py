"""The private parts of torch, each named once, with its fallback."""
