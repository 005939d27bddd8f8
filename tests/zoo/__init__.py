"""Every architecture of `transformers`, drawn and compared with oracles."""
