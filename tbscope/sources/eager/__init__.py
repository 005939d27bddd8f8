"""The eager source: watching one ordinary run of a model, operation by operation."""
