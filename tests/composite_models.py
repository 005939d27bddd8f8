"""Models that compute with tensors which are made of others, or are of another layout."""
# Each is a function of its own, so that it stands here as its user would write it.
# ruff: noqa: PLW0108

import warnings

import torch
from cases import add, adding, adding_to_a_module
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
X = torch.rand(3, 4) + 0.5
Y = torch.rand(3, 4) + 0.5
ROW = torch.rand(4) + 0.5

# -- tensors made of others ------------------------------------------------------------------


class Two(torch.Tensor):
    """Holds two tensors and computes with both."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, size, stride):
        return cls(inner["a"], inner["b"])

    @classmethod
    def parts(cls, given, part):
        return torch.utils._pytree.tree_map_only(cls, lambda each: getattr(each, part), given)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        a, b = (func(*cls.parts(args, part), **cls.parts(kwargs or {}, part)) for part in "ab")
        return cls(a, b) if isinstance(a, torch.Tensor) else a


class Quiet(Two):
    """The same, but tells torch nothing of what it holds."""

    __tensor_flatten__ = None


class Bundle(torch.Tensor):
    """Holds tensors in a list and computes with their sum."""

    @staticmethod
    def __new__(cls, parts):
        return torch.Tensor._make_wrapper_subclass(cls, parts[0].shape, dtype=parts[0].dtype)

    def __init__(self, parts):
        self.parts = list(parts)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = torch.utils._pytree.tree_map_only(cls, lambda each: sum(each.parts), args)
        return func(*plain, **(kwargs or {}))


class Scaled(torch.Tensor):
    """Has a content of its own, and a tensor beside by which it multiplies."""

    @staticmethod
    def __new__(cls, content, scale):
        made = torch.Tensor._make_subclass(cls, content)
        made.scale = scale
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            plain = [
                each.as_subclass(torch.Tensor) * each.scale if isinstance(each, cls) else each
                for each in args
            ]
            return func(*plain, **(kwargs or {}))


class Like:
    """No tensor, but torch's functions take it for one."""

    def __init__(self, content, scale):
        self.content, self.scale = content, scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [each.content * each.scale if isinstance(each, cls) else each for each in args]
        return cls(
            func(*plain, **(kwargs or {})), next(e.scale for e in args if isinstance(e, cls))
        )


@adding("two in one", X, Y, may="y")
def _(x, y):
    made = Two(x * 2, y) * 3
    return made.a, made + 1


@adding("two in one, set apart", X, Y)
def _(x, y):
    made = Two(x * 2, y * 3)
    return made.a * 2, made.b * 2


@adding("two in one, in place", X, Y)
def _(x, y):
    made = Two(x * 2, x * 3)
    made.add_(Two(y, y))
    return made.b + 1


@adding("two in one, through a part", X, Y)
def _(x, y):
    made = Two(x * 2, x * 3)
    made.b.add_(y)
    return (made * 2).b


@adding("two in one, through a view", X, ROW)
def _(x, y):
    made = Two(x * 2, x * 3)
    made[0].copy_(Two(y, y))
    return (made * 2).b


add("two in one, untold", lambda x, y: (Quiet(x * 2, y) * 3).b * 2, X, Y, may="x")
add("two in one, in another", lambda x, y: (Two(Two(x, y), Two(y, x)) * 2).a.b * 1, X, Y, may="x")
add("two in one, given", lambda x: (x * 2).b * 1, lambda: Two(X, Y))
add("a bundle", lambda x, y: Bundle([x * 2, y]) * 3, X, Y)
add("scaled", lambda x, y: Scaled(x, y) + 1, X, Y)
add("like a tensor", lambda x, y: torch.add(Like(x * 2, y), 1).content * 2, X, Y)


@adding("two in one as a weight", X)
class TwoAsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(Two(torch.rand(4, 4), torch.rand(4, 4)))

    def forward(self, x):
        return functional.linear(Two(x, x), self.weight).b * 2


def masked(x, mask=None):
    mask = torch.ones_like(x, dtype=torch.bool).tril() if mask is None else mask
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(x, mask)


add("masked", lambda x: masked(x * 2).sum(1).get_data() * 2, X)
add("masked, to a tensor", lambda x: (masked(x).exp() + 1).to_tensor(0.0), X)
add("masked, given back", lambda x: masked(x) * 2, X)
add("masked by two", lambda x, y: masked(x) * masked(y), X, Y)
add("masked softmax", lambda x: masked(x * 2).softmax(-1).get_data() + 0, X)
add("masked, given", lambda x: (x * 2).get_data() * 1, lambda: masked(X))
add("masked mean", lambda x: torch.masked.mean(x, dim=1, mask=x > 0), X)


@adding("scaled, but later", X, Y)
def _(x, y):
    made = (x * 2).as_subclass(Scaled)
    made.scale = y * 2
    return made + 1


@adding("masked, with other data", X, Y, may="x")
def _(x, y):
    made = masked(x * 2)
    made._masked_data = y * 3
    return made.sum().get_data() + 0


@adding("masked, in place", X, Y)
def _(x, y):
    made = masked(x * 2)
    made.mul_(masked(y))
    return made.get_data() * 1


add("masked, a row", lambda x: masked(x * 2)[0].get_data() + 1, X)
add(
    "masked, less",
    lambda x: [masked(x).mean(1).to_tensor(0.0), masked(x).amax(0).to_tensor(0.0)],
    X,
)
adding_to_a_module("masked layer", X)(lambda self, x: masked(self.lin(x)).softmax(1).to_tensor(0.0))


@adding("masked and sparse", X)
def _(x):
    mask = torch.ones_like(x, dtype=torch.bool).to_sparse()
    return masked(x.to_sparse(), mask).sin().get_data().to_dense() * 1


# -- jagged, sparse, quantised ---------------------------------------------------------------

OFFSETS = torch.tensor([0, 1, 3])


def jagged(values):
    return torch.nested.nested_tensor_from_jagged(values, OFFSETS)


add("jagged", lambda x: (jagged(x * 2) * 3).values() + 1, X)
add("jagged, given back", lambda x: jagged(x * 2).sin(), X)
add("jagged, padded", lambda x: jagged(x).sin().to_padded_tensor(0.0), X)
add("jagged, taken apart", lambda x: [part * 2 for part in jagged(x * 2).unbind()], X)
add("jagged, given", lambda x: (x * 2).values() + 1, lambda: jagged(X))
add(
    "jagged of rows",
    lambda x, y: torch.nested.as_nested_tensor([x, y], layout=torch.jagged) * 2,
    X,
    Y[:2],
)
add(
    "strided nest",
    lambda x, y: torch.nested.to_padded_tensor(torch.nested.as_nested_tensor([x, y]) * 2, 0.0),
    X,
    Y[:2],
)
add("jagged sum", lambda x: jagged(x).sum(1), X)
add("jagged, lengths", lambda x: jagged(x * 2).offsets().diff() * x.sum(), X)
adding_to_a_module("jagged layer", X)(
    lambda self, x: functional.layer_norm(self.lin(jagged(x)), (4,), self.scale).values() * 2
)


@adding_to_a_module("jagged attention", X)
def _(self, x):
    query = self.lin(jagged(x)).unflatten(-1, [2, 2]).transpose(1, 2)
    found = functional.scaled_dot_product_attention(query, query, query)
    return found.transpose(1, 2).flatten(-2).values() * 2


WHERE = torch.tensor([[0, 1, 2], [1, 0, 2]])

add("sparse", lambda x: torch.sparse.mm((x * 2).to_sparse(), x.T), X)
add(
    "sparse by hand",
    lambda v, x: torch.sparse.mm(torch.sparse_coo_tensor(WHERE, v * 2, (3, 3)), x),
    ROW[:3],
    X,
)
add(
    "sparse values",
    lambda v: (torch.sparse_coo_tensor(WHERE, v, (3, 3)).coalesce() * 2).values() + 1,
    ROW[:3],
)
add("sparse rows", lambda x: (x * 2).to_sparse_csr() @ x.T, X)
add(
    "sparse rows by hand",
    lambda v: (
        torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2]), v * 2, (3, 3)
        ).values()
        * 2
    ),
    ROW[:3],
)
add("sparse columns", lambda x: (x * 2).to_sparse_csc().to_dense() + 1, X)
add("sparse blocks", lambda x: (x * 2).to_sparse_bsr((3, 2)).values() + 1, X)
add("sparse softmax", lambda x: torch.sparse.softmax((x * 2).to_sparse(), 1).to_dense(), X)
add("sparse, given", lambda x, y: torch.sparse.mm(x, y), lambda: torch.eye(3).to_sparse(), X)
add("sparse rows, given", lambda x, y: x @ y, lambda: torch.eye(3).to_sparse_csr(), X)
add("sparse, in place", lambda x, y: x.to_sparse().mul_(2).to_dense() + y, X, Y)


@adding("sparse table", torch.tensor([0, 2]))
class SparseTable(nn.EmbeddingBag):
    def __init__(self):
        super().__init__(3, 4, sparse=True)

    def forward(self, x):
        return super().forward(x.view(1, -1))


@adding("sparse weight", X)
class SparseWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4).to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.weight, x.T)


def quantized(x):
    return torch.quantize_per_tensor(x, 0.001, 0, torch.qint32)


add("quantised", lambda x: quantized(x * 2).dequantize() * 2, X)
add("quantised, given back", lambda x: quantized(x * 2), X)
add("quantised, as numbers", lambda x: quantized(x).int_repr() * 2, X)
add(
    "quantised by channel",
    lambda x, s: torch.quantize_per_channel(
        x, s * 0.001, torch.zeros(4, dtype=torch.long), 1, torch.qint32
    ).dequantize(),
    X,
    ROW,
)
add("quantised in part", lambda x: quantized(x)[1:].reshape(-1).dequantize(), X)
add("quantised, given", lambda x: x.dequantize() * 2, lambda: quantized(X))
add(
    "quantised, not really",
    lambda x, s: torch.fake_quantize_per_tensor_affine(
        x * 2, s[0] * 0.01, torch.zeros(1, dtype=torch.int32), 0, 2**16
    ),
    X,
    ROW,
)


# -- writes into what they are made of ---------------------------------------------------------


@adding("jagged, in place", X, Y)
def _(x, y):
    nest = jagged(x * 2)
    nest.add_(jagged(y))
    return nest.values() * 1


@adding("jagged, through its values", X, Y)
def _(x, y):
    nest = jagged(x * 2)
    nest.values().add_(y)
    return (nest * 2).to_padded_tensor(0.0)


@adding("jagged, through a row of its values", X, ROW)
def _(x, y):
    nest = jagged(x * 2)
    nest._values[0].add_(y)
    return (nest * 2).to_padded_tensor(0.0)


@adding("sparse, through its values", X, Y)
def _(x, y):
    made = x.to_sparse()
    made._values().add_(y.flatten())
    return made.to_dense() * 1


@adding("sparse rows, through their values", X, Y)
def _(x, y):
    made = x.to_sparse_csr()
    made.values().add_(y.flatten())
    return made.to_dense() * 1


add("jagged, by another", lambda x, y: (jagged(x) * jagged(y)).values() * 1, X, Y)
add("jagged, cut", lambda x: [each.values() * 1 for each in jagged(x * 2).chunk(2, dim=-1)], X)
add("sparse, joined", lambda x, y: torch.cat([x.to_sparse(), y.to_sparse()])._values() * 1, X, Y)
add("sparse, added up", lambda x: torch.sparse.sum((x * 2).to_sparse(), 0).to_dense() * 1, X)
adding_to_a_module("sparse edges of a layer", X, ROW[:3])(
    lambda self, x, v: torch.sparse.mm(torch.sparse_coo_tensor(WHERE, v, (3, 3)), self.lin(x))
)
