"""What kernels give on stand-ins is told as torch tells it, or not at all."""

import itertools

import pytest
import torch

from tbscope.sources.torch.quick_results import quick_result

aten = torch.ops.aten


def meta(*sizes, **how):
    return torch.empty(sizes, device="meta", **how)


def told(result):
    results = result if isinstance(result, tuple) else (result,)
    return [(tuple(each.shape), each.stride(), each.dtype, each.device.type) for each in results]


NAMES = ("relu", "gelu", "silu", "sigmoid", "tanh", "exp", "cos", "sin", "neg", "rsqrt")
ELEMENTWISE = [getattr(aten, name).default for name in NAMES]
BOTH = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor]
SIZES = [(), (3,), (2, 3), (1, 1), (2, 1, 4), (1, 5, 2, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [*ELEMENTWISE, *BOTH])
def test_what_goes_element_by_element_gives_what_torch_gives(kernel, dtype):
    for sizes in SIZES:
        args = [meta(*sizes, dtype=dtype)] * (2 if kernel in BOTH else 1)
        assert told(quick_result(kernel, args, {})) == told(kernel(*args))


def shapes(most):
    """Give all shapes of no more dimensions, each of a size of 1 to 3."""
    return [
        sizes for rank in range(most + 1) for sizes in itertools.product((1, 2, 3), repeat=rank)
    ]


@pytest.mark.parametrize("kernel", BOTH)
def test_two_tensors_of_which_one_is_repeated_give_what_torch_gives(kernel):
    for one, other in itertools.product(shapes(2), shapes(3)):
        quick = quick_result(kernel, [meta(*one), meta(*other)], {})
        if quick is None:
            with pytest.raises(RuntimeError):
                kernel(meta(*one), meta(*other))
        else:
            assert told(quick) == told(kernel(meta(*one), meta(*other)))


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("number", [2, 0.5])
def test_a_tensor_and_a_number_give_what_torch_gives(kernel, number):
    assert told(quick_result(kernel, [meta(2, 3), number], {})) == told(kernel(meta(2, 3), number))


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_softmax_and_a_roll_give_what_torch_gives(over):
    for kernel, args in (
        (aten._softmax.default, [meta(2, 3), over, False]),
        (aten.roll.default, [meta(2, 3), [1], [over]]),
    ):
        assert told(quick_result(kernel, args, {})) == told(kernel(*args))


def test_a_fill_by_a_mask_gives_what_torch_gives():
    kernel = aten.masked_fill.Scalar
    taken = 0
    for one, other in itertools.product(shapes(2), shapes(3)):
        args = [meta(*one), meta(*other, dtype=torch.bool), 0.5]
        quick = quick_result(kernel, args, {})
        taken += quick is not None
        assert quick is None or told(quick) == told(kernel(*args))
    assert taken > 50
    turned = [meta(2, 3), meta(3, 2, dtype=torch.bool).t(), 0.5]
    assert told(quick_result(kernel, turned, {})) == told(kernel(*turned))


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (5, 2, 3), (1, 1, 2, 3)])
@pytest.mark.parametrize("over", [(3,), (2, 3)])
@pytest.mark.parametrize("affine", [True, False])
def test_a_layer_norm_gives_what_torch_gives(sizes, over, affine):
    if sizes[-len(over) :] != over:
        return
    own = [meta(*over), meta(*over)] if affine else [None, None]
    args = [meta(*sizes), list(over), *own, 1e-5]
    kernel = aten.native_layer_norm.default
    assert told(quick_result(kernel, args, {})) == told(kernel(*args))


@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 4), (2, 3, 4, 4)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_a_batch_norm_gives_what_torch_gives(sizes, training, tracked):
    if not training and not tracked:
        return
    own = [meta(3), meta(3), *([meta(3), meta(3)] if tracked else [None, None])]
    args = [meta(*sizes), *own, training, 0.1, 1e-5]
    kernel = aten.native_batch_norm.default
    assert told(quick_result(kernel, args, {})) == told(kernel(*args))


@pytest.mark.parametrize("columns", [meta(4, 5).t(), meta(5, 4)[:, ::1].t(), meta(4, 5)])
def test_a_product_gives_what_torch_gives(columns):
    args = [meta(columns.shape[1]), meta(2, columns.shape[0]), columns]
    kernel = aten.addmm.default
    assert told(quick_result(kernel, args, {})) == told(kernel(*args))


@pytest.mark.parametrize(
    ("kernel", "args", "kwargs"),
    [
        (aten.relu.default, [meta(2, 3, dtype=torch.int64)], {}),
        (aten.relu.default, [meta(2, 3, dtype=torch.bfloat16)], {}),
        (aten.relu.default, [meta(2, 3).t()], {}),
        (aten.relu.default, [meta(0, 3)], {}),
        (aten.relu.default, [torch.ones(2, 3)], {}),
        (aten.relu.default, [torch.nn.Parameter(meta(2, 3))], {}),
        (aten.add.Tensor, [meta(2, 3), meta(2)], {}),
        (aten.add.Tensor, [meta(2, 3), meta(3, 2).t()], {}),
        (aten.add.Tensor, [meta(2, dtype=torch.int64), 1.0], {}),
        (aten.add.Tensor, [meta(2), 1j], {}),
        (aten.add.Tensor, [meta(2), True], {}),
        (aten.masked_fill.Scalar, [meta(3), meta(3), 0.0], {}),
        (aten.masked_fill.Scalar, [meta(3), meta(2, dtype=torch.bool), 0.0], {}),
        (aten.masked_fill.Scalar, [meta(3), torch.ones(3).bool(), 0.0], {}),
        (aten._softmax.default, [meta(3), 0, True], {}),
        (aten.add.Tensor, [meta(2), meta(2, dtype=torch.float64)], {}),
        (aten.add.Tensor, [meta(2), meta(2)], {"alpha": 2}),
        (aten.addmm.default, [meta(2, 3), meta(2, 4), meta(4, 3)], {}),
        (aten.addmm.default, [meta(3), meta(2, 4), meta(5, 3)], {}),
        (aten.native_layer_norm.default, [meta(2, 3), [2], None, None, 1e-5], {}),
        (aten.native_layer_norm.default, [meta(2, 3), [3], meta(2), None, 1e-5], {}),
        (
            aten.native_batch_norm.default,
            [meta(2, 3), *[None] * 2, *[meta(2)] * 2, False, 0.1, 1e-5],
            {},
        ),
        (aten.native_batch_norm.default, [meta(2, 3), *[None] * 4, False, 0.1, 1e-5], {}),
        (aten.mm.default, [meta(2, 3), meta(3, 2)], {}),
    ],
)
def test_what_is_not_plain_is_left_to_torch(kernel, args, kwargs):
    assert quick_result(kernel, args, kwargs) is None
