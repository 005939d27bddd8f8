"""From a graph to TensorFlow's GraphDef: names, shapes, attributes; knows nothing of torch."""
