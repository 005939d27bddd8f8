"""Arguments and results of calls: signatures, pytrees, constants."""
