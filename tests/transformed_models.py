"""Models that transform functions: `vmap`, `grad` and their kin, and `functional_call`."""
# Each is a function of its own, so that it stands here as its user would write it.
# ruff: noqa: PLW0108

import torch
from cases import add, adding, adding_to_a_module
from torch._higher_order_ops import scan
from torch.func import (
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

torch.manual_seed(0)
X = torch.rand(3, 4) + 0.5
Y = torch.rand(3, 4) + 0.5
ROW = torch.rand(4) + 0.5
CUBE = torch.rand(2, 3, 4) + 0.5
FIXED = torch.rand(4, 4)


def energy(row: torch.Tensor) -> torch.Tensor:
    """Give a number with second derivatives."""
    return (row.sin() * row).sum() ** 2


# -- vmap ------------------------------------------------------------------------------------

add("vmap", lambda x: vmap(lambda r: r * 2)(x), X)
add("vmap to another place", lambda x: vmap(torch.sin, out_dims=1)(x), X)
add("vmap from another place", lambda x: vmap(torch.sin, in_dims=1)(x), X)
add("vmap to numbers", lambda x: vmap(torch.sum)(x) + 1, X)
add("vmap of vmap", lambda x: vmap(vmap(lambda r: r * 2))(x), CUBE)
add("vmap of vmap crosswise", lambda x, y: vmap(vmap(torch.dot, (None, 0)), (0, None))(x, y), X, Y)
add("vmap with more", lambda x, y: vmap(torch.dot, in_dims=(0, None))(x, y), X, ROW)
add("vmap in chunks", lambda x: vmap(torch.sin, chunk_size=2)(x), X)
add("vmap of what is not mapped", lambda x, y: vmap(lambda r: y * 2)(x), X, ROW)
add("vmap to two", lambda x: vmap(lambda r: {"a": r * 2, "b": (r.sum(),)})(x), X)
add("vmap twice in a row", lambda x: vmap(torch.cos)(vmap(torch.sin)(x)), X)
add("vmap of the same twice", lambda x: (vmap(torch.cos)(x), vmap(torch.sin)(x)), X)
add("vmap at random", lambda x: vmap(functional.dropout, randomness="different")(x), X)
adding_to_a_module("vmap of a module", X)(lambda self, x: vmap(self.lin)(x))
adding_to_a_module("vmap of parameters", X)(
    lambda self, x: vmap(lambda r: self.lin(r) * self.scale + self.shift)(x)
)


@adding("vmap with writes", X, Y)
def _(x, y):
    def row(one, other):
        one = one * 2
        one.add_(other)
        return one + 1

    return vmap(row)(x, y)


@adding("vmap with writes through a view", X, Y)
def _(x, y):
    def row(one, other):
        one = one * 2
        one[1:3].copy_(other[:2])
        return one + 1, other * 1

    return vmap(row)(x, y)


@adding("vmap that sets a part", X, Y)
def _(x, y):
    def row(one, other):
        one = one.clone()
        one[0] = other[0]
        return one

    return vmap(row)(x, y)


@adding("vmap that writes into what is outside", X, Y)
def _(x, y):
    kept = x * 2

    def row(one, other):
        one.mul_(other)
        return one.sum()

    return vmap(row)(kept, y), kept + 1


@adding("vmap that sets a part of what is outside", X, Y)
def _(x, y):
    kept = x * 2

    def row(one, other):
        one[0] = other[0]
        return one + 1

    return vmap(row)(kept, y), kept + 1


add("vmap of vmap to numbers", lambda x: vmap(vmap(lambda each: each * 2))(x), X)


@adding("vmap that writes apart", X, Y)
def _(x, y):
    def row(one, other):
        left, right = (one * 2).chunk(2)
        left.add_(other[:2])
        return left, right + 1

    return vmap(row)(x, y)


@adding("vmap of indices", X)
def _(x):
    return vmap(lambda r, i: r[i], in_dims=(0, 0))(x, torch.tensor([0, 1, 2]).unsqueeze(1))


# -- derivatives -----------------------------------------------------------------------------

add("grad", lambda x: grad(energy)(x), ROW)
add("grad of grad", lambda x: grad(lambda y: grad(energy)(y).sum())(x), ROW)
add("grad and value", lambda x: grad_and_value(energy)(x), ROW)
add("grad with more", lambda x, y: grad(lambda a, b: (a * b).sin().sum())(x, y), ROW, ROW + 1)
add("grad to both", lambda x, y: grad(lambda a, b: (a * b).sin().sum(), (0, 1))(x, y), ROW, ROW + 1)
add("grad with aside", lambda x: grad(lambda y: (energy(y), y * 2), has_aux=True)(x), ROW)
add("vmap of grad", lambda x: vmap(grad(energy))(x), X)
add("vmap of grad and value", lambda x: vmap(grad_and_value(energy))(x), X)
add("vmap of grad of grad", lambda x: vmap(grad(lambda y: grad(energy)(y).sum()))(x), X)
add("vmap of vmap of grad", lambda x: vmap(vmap(grad(energy)))(x), CUBE)
add("grad of vmap", lambda x: grad(lambda y: vmap(energy)(y).sum())(x), X)
add("jacrev", lambda x: jacrev(torch.sin)(x), ROW)
add("jacfwd", lambda x: jacfwd(torch.sin)(x), ROW)
add("jacrev in chunks", lambda x: jacrev(torch.sin, chunk_size=1)(x), ROW)

add("jacrev of a matrix", lambda x: jacrev(lambda y: (y @ FIXED).sin())(x), X)
add("jacfwd of a matrix", lambda x: jacfwd(lambda y: (y @ FIXED).sin())(x), X)
add("jacfwd of two", lambda x, y: jacfwd(lambda a, b: (a * b).sin(), (0, 1))(x, y), ROW, ROW + 1)
add("jacrev of a tree", lambda x: jacrev(lambda t: {"o": t["i"].sin()})({"i": x}), ROW)
add("hessian", lambda x: hessian(energy)(x), ROW)
add("hessian of a matrix", lambda x: hessian(energy)(x), X)
add("jacrev of jacfwd", lambda x: jacrev(jacfwd(torch.sin))(x), ROW)
add("jacfwd of jacfwd", lambda x: jacfwd(jacfwd(torch.sin))(x), ROW)
add("vmap of jacrev", lambda x: vmap(jacrev(torch.sin))(x), X)
add("vmap of jacfwd", lambda x: vmap(jacfwd(torch.sin))(x), X)
add("vmap of hessian", lambda x: vmap(hessian(energy))(x), X)
add("jacfwd with aside", lambda x: jacfwd(lambda y: (y.sin(), y * 2), has_aux=True)(x), ROW)
add("vjp", lambda x, v: vjp(torch.sin, x)[1](v), ROW, ROW + 1)
add("vjp with its result", lambda x: vjp(torch.sin, x)[0], ROW)
add("vmap of vjp", lambda x, v: vmap(vjp(torch.sin, x)[1])(v), ROW, X)
add("jvp", lambda x, v: jvp(torch.sin, (x,), (v,)), ROW, ROW + 1, may="v")
add("vmap of jvp", lambda x, v: vmap(lambda t: jvp(torch.sin, (x,), (t,))[1])(v), ROW, X)
add("hessian by vector", lambda x, v: jvp(grad(energy), (x,), (v,))[1], ROW, ROW + 1)
add("linearize", lambda x, v: linearize(torch.sin, x)[1](v), ROW, ROW + 1)
add("linearize with its result", lambda x: linearize(torch.sin, x)[0], ROW)
add(
    "linearize twice used",
    lambda x, v: [linearize(lambda y: (y @ FIXED).sin() * 2, x)[1](t) for t in (v, v + 1)],
    X,
    Y,
)
add("vmap of linearize", lambda x, v: vmap(linearize(torch.sin, x)[1])(v), ROW, X)
add("functionalize", functionalize(lambda x, y: (x * 2).add_(y)), X, Y)
add(
    "vmap of functionalize",
    lambda x, y: vmap(functionalize(lambda a, b: (a * 2).add_(b)))(x, y),
    X,
    Y,
)
adding_to_a_module("grad of a module", X, may=("shift",))(
    lambda self, x: grad(lambda y: (self.lin(y).sin() * self.scale + self.shift).sum())(x)
)
adding_to_a_module("vmap of grad of a module", X)(
    lambda self, x: vmap(grad(lambda y: self.lin(y).sin().sum()))(x)
)
adding_to_a_module("jacfwd of a module", ROW)(
    lambda self, x: jacfwd(lambda y: self.lin(y).sin())(x)
)
add("autograd's jacobian", lambda x: torch.autograd.functional.jacobian(torch.sin, x), ROW)
add(
    "autograd's jacobian by vmap",
    lambda x: torch.autograd.functional.jacobian(torch.sin, x, vectorize=True),
    ROW,
)
add(
    "autograd's forward jacobian",
    lambda x: torch.autograd.functional.jacobian(
        torch.sin, x, vectorize=True, strategy="forward-mode"
    ),
    ROW,
)
add("autograd's hessian", lambda x: torch.autograd.functional.hessian(energy, x), ROW)
add(
    "autograd's hessian by vmap",
    lambda x: torch.autograd.functional.hessian(energy, x, vectorize=True),
    ROW,
)
add(
    "autograd's vector products",
    lambda x, v: (
        torch.autograd.functional.vjp(torch.sin, x, v)[1],
        torch.autograd.functional.jvp(torch.sin, x, v)[1],
        torch.autograd.functional.vhp(energy, x, v)[1],
        torch.autograd.functional.hvp(energy, x, v)[1],
    ),
    ROW,
    ROW + 1,
)


@adding("grads in a batch", ROW)
def _(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = x.sin()
        return torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)[0]


@adding("forward mode by hand", ROW, ROW + 1)
def _(x, v):
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        return forward.unpack_dual(forward.make_dual(x, v).sin()).tangent


@adding("grad with writes", ROW, ROW + 1)
def _(x, y):
    def run(a):
        b = a * 2
        b.mul_(y)
        b[0] = a[1] * y[2]
        return b.sin().sum()

    return grad(run)(x)


@adding("what leaves by the side", X)
def _(x):
    found = []

    def row(r):
        found.append(x.cos())
        return r.sin()

    return vmap(row)(x), found[0] * 2


class Square(torch.autograd.Function):
    """A function of the user's own, with a rule for each transform."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, given):
        return given * 2 * ctx.saved_tensors[0]


add("grad of a function", lambda x: grad(lambda y: Square.apply(y).sum())(x), ROW)
add("vmap of a function", lambda x: vmap(Square.apply)(x), X)
add("vmap of grad of a function", lambda x: vmap(grad(lambda y: Square.apply(y).sum()))(x), X)
add("cond in vmap", lambda x: vmap(lambda r: torch.where(r.sum() > 2, r.sin(), r * 2))(x), X)


@adding_to_a_module("flexible attention", X)
def _(self, x):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query = self.lin(x).view(1, 1, 3, 4)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 3, 3, device="cpu")
    biased = lambda score, b, h, i, j: score + self.shift[j] * (i - j)
    return flex_attention(query, query, query, score_mod=biased, block_mask=mask)


add("vmap inside out", lambda x, y: vmap(lambda a: vmap(lambda b: (a * b).sum())(y))(x), X, Y)
add("vmap to nowhere", lambda x, y: vmap(lambda r: (r * 2, y.sin()), out_dims=(0, None))(x), X, ROW)
add("scan", lambda x: scan(lambda total, r: (total + r, total * r), x[0] * 1, x)[1], X)
add("a graph made on the way", lambda x, y: make_fx(lambda a: a * y)(x)(x + 1), X, Y)
