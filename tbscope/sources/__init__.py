"""Sources: where graphs come from. They know torch, and nothing of protobuf or files."""
