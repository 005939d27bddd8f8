"""Arguments and results of calls: signatures, nests, constants."""
