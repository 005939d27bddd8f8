"""Values of tensors: the table of all tensors, in-place writes, and results of backward passes."""
