"""Event files: the sinks of events, the tags and steps of graphs, and the bytes of records."""
