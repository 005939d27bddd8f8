"""What tbscope costs beside a forward and beside torch's own: `python -m benchmarks`."""
