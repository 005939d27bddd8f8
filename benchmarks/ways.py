"""How torch's own graph function is called; imports nothing, as an import is measured, too."""

__all__ = ["WAYS_OF_TORCH"]

# From what a user types to what helps it most.
WAYS_OF_TORCH = {
    "as users call it": {"grad": True, "strict": True},
    "with no_grad": {"grad": False, "strict": True},
    "with no_grad, not strict": {"grad": False, "strict": False},
}
