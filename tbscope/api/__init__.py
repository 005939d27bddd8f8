"""Functions of the public interface: `add_graph`, `watch`, `install`."""
