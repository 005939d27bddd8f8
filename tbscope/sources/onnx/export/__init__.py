"""Export to ONNX with the calls of modules as local functions."""
