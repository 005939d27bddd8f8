"""Programs: graphs that torch holds already, as torch.export and torch.fx give them."""
