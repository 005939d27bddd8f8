"""What all sources of torch share: its operations, signatures, nests and formulas."""
