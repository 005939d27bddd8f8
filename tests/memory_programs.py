"""Random programs: views, writes, wrappers, module calls and threads over a pool of tensors."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from composite_models import Two
from hypothesis import strategies as st
from torch import nn

import tbscope

SIZE = 4


class Tagged(torch.Tensor):
    """A subclass without anything of its own."""


class Machine:
    """The pool of tensors of one run, and the steps that work on it.

    Attributes:
        pool: The tensors.
        log: The log of the run, or None if tbscope records it.
    """

    def __init__(self, log):
        self.pool, self.log = [], log
        self.works = 0

    def beside(self, pool):
        machine = Machine(self.log)
        machine.pool = pool
        return machine

    def run(self, part, steps):
        for step in steps:
            self.step(part, step)

    def step(self, part, step):
        kind, which, one, other = step
        if kind == "forget":
            if len(self.pool) > 2:
                del self.pool[which % len(self.pool)]
            return
        a, b = self.pool[one % len(self.pool)], self.pool[other % len(self.pool)]
        made = getattr(self, kind)(part, which, a, b)
        self.pool += [made] if isinstance(made, torch.Tensor) else made or []
        del self.pool[:-12]

    # -- plain steps

    def fit(self, b, a):
        """Give a tensor that can be added to another one."""
        try:
            fits = torch.broadcast_shapes(a.shape, b.shape) == a.shape
        except RuntimeError:
            fits = False
        return b if fits else b.sum()

    def compute(self, part, which, a, b):
        return [
            lambda: a + self.fit(b, a),
            lambda: a * 2,
            lambda: torch.cat([a.flatten(), b.flatten()])[:16],
            a.clone,
            lambda: torch.relu(a),
            lambda: torch.stack([a, a]).sum(0),
            lambda: a.sum(-1) if a.dim() else a + 1,
            lambda: torch.zeros(4, 4),
        ][which % 8]()

    def view(self, part, which, a, b):
        if a.dim() == 0:
            return a.view(1)
        return [
            lambda: a[0],
            lambda: a[..., : (a.shape[-1] + 1) // 2],
            lambda: a[..., a.shape[-1] // 2 :],
            lambda: a[::2],
            lambda: a.unsqueeze(0) if a.dim() < 3 else a[0],
            lambda: a.transpose(0, -1),
            lambda: a.view(-1) if a.is_contiguous() else a.contiguous(),
            lambda: a.view_as(a),
        ][which % 8]()

    def several(self, part, which, a, b):
        if a.dim() == 0:
            return [a.expand(2)]
        return [lambda: a.unbind(0)[:3], lambda: a.chunk(2), lambda: a.split(1)[:2]][which % 3]()

    def write(self, part, which, a, b):
        ways = [
            lambda: a.add_(1),
            lambda: a.mul_(other=self.fit(b, a)),
            a.zero_,
            lambda: a.copy_(self.fit(b, a)),
            lambda: a.__setitem__(0 if a.dim() else ..., self.fit(b, a).sum()),
            lambda: a.view(-1)[:2].mul_(3) if a.is_contiguous() else a.sub_(1),
            lambda: torch.mul(a, 2, out=a),
            lambda: torch.add(torch.ones(a.shape), other=self.fit(b, a).clone(), out=a),
            lambda: torch._foreach_add_([a, torch.zeros(2)], 1),
            lambda: nn.functional.relu(a, inplace=True),
        ]
        ways[which % 10]()

    def read(self, part, which, a, b):
        number = a.sum().item()
        return b * (number if which % 2 else 2.0)

    def alias(self, part, which, a, b):
        return [
            a.detach,
            lambda: a.data,
            a.contiguous,
            lambda: a.to(torch.float32),
        ][which % 4]()

    # -- tensors around tensors

    def face(self, part, which, a, b):
        if type(a) is not torch.Tensor:
            return a.as_subclass(torch.Tensor)
        kind = [Tagged, nn.Parameter][which % 2]
        return nn.Parameter(a, requires_grad=False) if kind is nn.Parameter else a.as_subclass(kind)

    def wrap(self, part, which, a, b):
        if type(a) is not torch.Tensor or a.dim() == 0:
            return None
        two = Two(a, a.clone() if which % 2 else a * 3)
        if which % 3 == 1:
            a.add_(1)
        if which % 3 == 2:
            two.mul_(2)
        result = two * 2 if which % 4 else two + two
        return [result.a, result.b]

    def vmap(self, part, which, a, b):
        if a.dim() == 0:
            return None

        def function(row):
            self.beside([row]).run(None, part.inner[which % len(part.inner)])
            return row * 2

        return torch.func.vmap(function)(a)

    def grad(self, part, which, a, b):
        def function(row):
            made = row * 2
            self.beside([made]).run(None, part.inner[which % len(part.inner)])
            return made.sum()

        return torch.func.grad(function)(a.as_subclass(torch.Tensor))

    def jvp(self, part, which, a, b):
        def function(row):
            made = row * 2
            self.beside([made]).run(None, part.inner[which % len(part.inner)])
            return made * 3

        return [*torch.func.jvp(function, (a,), (torch.ones_like(a),))]

    # -- modules

    def call(self, part, which, a, b):
        parts = part.all_parts()
        return parts[which % len(parts)](a) if parts else None

    def by_hand(self, part, which, a, b):
        parts = part.all_parts()
        if not parts:
            return None
        called = parts[which % len(parts)]
        if self.log is None or called.is_running:
            return called.forward(a)
        with self.log.inside(called):
            return called.forward(a)

    def functional(self, part, which, a, b):
        parts = part.all_parts()
        if not parts:
            return None
        given = {"weight": self.fit(b, part.weight) * 2} if which % 2 else {"count": b.detach() * 2}
        return torch.func.functional_call(parts[which % len(parts)], given, (a,))

    def state(self, part, which, a, b):
        if which % 3 == 0:
            part.count.add_(1)
        if which % 3 == 1:
            part.count.copy_(self.fit(a, part.count).detach())
        return [part.weight * self.fit(a, part.weight), part.count][:: 1 if which % 2 else -1]

    def caught(self, part, which, a, b):
        try:
            part.raising(a)
        except ValueError:
            return a + 1

    def same(self, part, which, a, b):
        return part.same(a)

    def stepwise(self, part, which, a, b):
        entries = []
        for entry in part.yielding(a):
            entries.append(entry * 2)
            if len(entries) == which % 4:
                break
        return entries

    # -- threads

    def thread(self, part, which, a, b):
        steps = part.inner[which % len(part.inner)]
        errors = []

        def run():
            try:
                self.run(part, steps)
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=self._work(run, ""))
        thread.start()
        thread.join()
        for error in errors:
            raise error

    def threads(self, part, which, a, b):
        def work(steps, label):
            def run():
                with tbscope.scope(label):
                    machine = self.beside([a + 1, b * 2])
                    machine.run(None, steps)
                    return machine.pool[-1]

            return self._work(run, label)

        works = []
        for number in range(2):
            self.works += 1
            works.append(work(part.inner[(which + number) % len(part.inner)], f"work{self.works}"))
        with ThreadPoolExecutor(2) as pool:
            return [future.result() for future in [pool.submit(each) for each in works]]

    def _work(self, function, label):
        return function if self.log is None else self.log.work(function, label)


class Yielding(nn.Module):
    """A module whose forward yields."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        for number in range(3):
            yield x + self.weight * number


class Raising(nn.Module):
    """A module that raises after its first operation."""

    def forward(self, x):
        x = x * 2
        raise ValueError(str(len(x.shape)))


class Part(nn.Module):
    """A module that runs a list of steps, with parts of its own.

    Args:
        steps: Its steps.
        inner: Lists of steps for functions and threads.
        parts: The parts.
        hooked: Whether hooks compute before and after its forward.
    """

    def __init__(self, steps, inner, parts, hooked):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SIZE))
        self.register_buffer("count", torch.zeros(SIZE))
        self.parts = nn.ModuleList(parts)
        self.linear = nn.Linear(1, 2)
        self.raising, self.yielding, self.same = Raising(), Yielding(), nn.Identity()
        self.steps, self.inner, self.is_running = steps, inner, False
        self.shared = []
        if hooked:
            self.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
            self.register_forward_hook(lambda module, args, result: result + 1)

    def all_parts(self):
        return [part for part in [*self.parts, *self.shared] if not part.is_running]

    def forward(self, x):
        self.is_running = True
        try:
            machine = self.machine
            machine.pool.append(x)
            machine.run(self, self.steps)
            return machine.pool[-1]
        finally:
            self.is_running = False


class Root(Part):
    """The model: its inputs are the first tensors of the pool."""

    def forward(self, x, y):
        self.is_running = True
        machine = self.machine
        machine.pool[:] = [x * self.weight, x, y]
        try:
            machine.run(self, self.steps)
            return tuple(machine.pool)
        finally:
            self.is_running = False

    def attach(self, log):
        machine = Machine(log)
        for part in self.modules():
            if isinstance(part, Part):
                # An earlier run may have written results with gradients into it.
                part.count.detach_()
                part.__dict__["machine"] = machine
                # Each part may call those of the root, too.
                part.__dict__["shared"] = [each for each in self.parts if each is not part]
        return machine


PLAIN = ("compute", "compute", "view", "view", "several", "write", "write", "write", "read")
PLAIN += ("alias", "forget")
MODULES = ("call", "call", "by_hand", "functional", "state", "caught", "same", "stepwise")
WRAPPERS = ("face", "wrap", "vmap", "grad", "jvp")
THREADS = ("thread", "threads")
INNER = ("compute", "view", "write", "write")

_number = st.integers(0, 11)


def step_lists(kinds, least, most):
    step = st.tuples(st.sampled_from(kinds), _number, _number, _number)
    return st.lists(step, min_size=least, max_size=most)


def programs(kinds):
    """Give a strategy for models whose steps are of these kinds."""
    steps = step_lists(kinds, 2, 6)
    inner = st.lists(step_lists(INNER, 1, 4), min_size=2, max_size=2)
    leaf = st.builds(Part, steps, inner, st.just([]), st.booleans())
    part = st.builds(Part, steps, inner, st.lists(leaf, max_size=2), st.booleans())
    # Effects on memory need several steps one after the other.
    whole = step_lists(kinds, 10, 20)
    return st.builds(Root, whole, inner, st.lists(part, max_size=2), st.just(False))
