"""The eager source: watches one ordinary run of a model."""
