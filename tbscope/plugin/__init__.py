"""The tab "Model" in TensorBoard: the graphs of a log, in the viewer of saved pages."""
