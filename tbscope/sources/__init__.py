"""Sources of graphs: models, programs, files and logs, and their conversion to `Graph`."""
