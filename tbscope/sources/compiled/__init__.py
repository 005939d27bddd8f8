"""What torch.compile captures of a model, as graphs."""
