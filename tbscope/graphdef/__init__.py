"""From plain values to the bytes of a GraphDef: attributes, shapes, statistics, wire format."""
