"""Says which tests an older torch cannot pass, and why."""

import pytest
import torch

TORCH = tuple(int(number) for number in torch.__version__.partition("+")[0].split(".")[:2])


def needs_torch(*version, reason):
    """Mark a test that an older torch than this one cannot pass."""
    older = version > TORCH
    return pytest.mark.skipif(older, reason=f"torch {'.'.join(map(str, version))}: {reason}")
