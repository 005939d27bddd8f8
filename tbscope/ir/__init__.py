"""The graph as plain data, and what is done with it: it knows nothing of torch or protobuf."""
