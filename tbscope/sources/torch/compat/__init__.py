"""Private parts of torch, each named once, with a fallback for versions that lack it."""
