"""ONNX: models read as graphs, and the calls of modules written as functions of a model."""
