"""What Windows and other terminals lack, taken away here."""

import subprocess
import sys
import textwrap

WITHOUT = """
import os
import signal
import tempfile
import torch
import torch.utils.tensorboard

for name in ("fork", "register_at_fork", "getpgid", "killpg", "mkfifo"):
    delattr(os, name)
for name in ("SIGHUP", "SIGALRM", "SIGUSR1", "SIGKILL", "alarm", "pthread_kill"):
    delattr(signal, name)
"""

USES = """
import tbscope
from tbscope.cli.commands.view import ended_by_signals

model = torch.nn.Linear(3, 2)
with tempfile.TemporaryDirectory() as folder:
    with tbscope.SummaryWriter(folder) as writer:
        graph = writer.add_graph(model, torch.ones(1, 3), profile=2)
        writer.watch(model)
        model(torch.ones(1, 3)).sum().backward()
        torch.optim.SGD(model.parameters()).step()
    graph.save(f"{folder}/net.html")
    tags = [logged.tag for logged in tbscope.read_log(folder)]
    assert tags == [None, None], tags
    with ended_by_signals() as signals:
        signal.raise_signal(signal.SIGTERM)
    assert signals == [signal.SIGTERM]
"""


def test_nothing_needs_what_windows_lacks():
    subprocess.run([sys.executable, "-c", WITHOUT + USES], check=True)


def test_a_name_that_the_terminal_cannot_print_is_escaped(tmp_path):
    (tmp_path / "nets.py").write_text(
        textwrap.dedent("""
        import torch

        class 网络(torch.nn.Module):
            def forward(self, x):
                return x + 1
        """),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "tbscope", "show", "nets.py:网络", "-i", "2"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "cp1252"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "scope: \\u7f51\\u7edc" in done.stdout
