"""What TensorBoard's page needs of a GraphDef, rule by rule; `tbscope.linter` holds the table."""
