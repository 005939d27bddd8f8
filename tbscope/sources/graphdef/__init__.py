"""Graphs that are GraphDefs: TensorFlow's, torch's own, tensorboardX's, and drawings of ours."""
