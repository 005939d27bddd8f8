"""Graphs in GraphDefs: of TensorFlow, torch, tensorboardX, and drawings of tbscope."""
