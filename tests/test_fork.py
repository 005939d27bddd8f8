"""A process that is forked while another thread draws."""

import os
import threading

import pytest
import torch
from torch import nn

import tbscope

X = torch.ones(2, 4)


class Meeting(nn.Module):
    """Stays in forward until another thread has forked."""

    def __init__(self):
        super().__init__()
        self.drawing, self.forked = threading.Event(), threading.Event()

    def forward(self, x):
        self.drawing.set()
        assert self.forked.wait(60)
        return x * 2


# Other threads of a process may hold any lock when it is forked: here there are none.
@pytest.mark.alone
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forked_while_another_thread_draws_can_draw():
    model = Meeting()
    drawing = threading.Thread(target=tbscope.trace, args=(model, X))
    drawing.start()
    assert model.drawing.wait(60)
    child = os.fork()
    if child == 0:
        tbscope.trace(nn.Linear(4, 4), X)
        os._exit(7)
    model.forked.set()
    drawing.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
