"""The graph as plain data, and the code that builds, edits and checks it, without torch."""
