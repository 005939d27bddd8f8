"""The requirements of TensorBoard's page on a GraphDef, one function each; `linter` lists them."""
