"""A model of TensorBoard's page: how it draws a GraphDef. It does not use tbscope's own graph."""
