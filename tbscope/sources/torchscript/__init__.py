"""TorchScript: modules and functions that torch.jit traced or scripted, and files of them."""
