"""What TensorBoard's page does with a GraphDef; it knows no graph of ours."""
