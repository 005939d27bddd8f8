"""What TensorBoard's page needs of a GraphDef, rule by rule; `linter` holds the table."""
