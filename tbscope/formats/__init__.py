"""Forms in which a graph is kept outside of Python, without loss: its schema is docs/formats.md."""
