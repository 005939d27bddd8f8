"""Whatever a run does to a model, its inputs or the process: afterwards all is as before."""

import contextlib
import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BatchEncoding, DynamicCache

from tbscope.errors import TraceError
from tbscope.sources.eager.restore.preserve import Snapshot
from tbscope.sources.torch.compat.modules import set_default_device
from tbscope.sources.torch.operations import SETTERS


class TellingOfSetters(TorchFunctionMode):
    """Tells of what changes a tensor and is no operation, as the tracer does."""

    def __init__(self, preserved):
        super().__init__()
        self.preserved = preserved

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in SETTERS:
            self.preserved.about_to_set(args[0])
        elif func is torch.Tensor.backward:
            self.preserved.about_to_accumulate()
        return func(*args, **(kwargs or {}))


class Telling(TorchDispatchMode):
    """Tells of each write, as the tracer does."""

    def __init__(self, preserved):
        super().__init__()
        self.preserved = preserved

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.preserved.about_to_write(given)
        return func(*args, **(kwargs or {}))


def run(action, *modules, inputs=None, **options):
    listed = [inner for module in modules for inner in module.modules()]
    preserved = Snapshot(listed, inputs, **options)
    with preserved, Telling(preserved), TellingOfSetters(preserved):
        return action()


class Box:
    """An object of the model's own code."""

    def __init__(self):
        self.items = [1]
        self.tensor = torch.zeros(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("seen", torch.zeros(2))
        self.plain = torch.zeros(2)
        self.count = 0
        self.box = Box()


@dataclass
class Batch:
    image: torch.Tensor
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    image: Any
    label: Any = None


class TestModes:
    def test_each_module_keeps_its_own_training_flag(self):
        model = Model()
        model.norm.eval()
        during = run(lambda: [m.training for m in model.modules()], model, training=False)
        assert during == [False, False, False]
        assert [m.training for m in model.modules()] == [True, True, False]

    def test_all_modules_train_where_that_is_asked_for(self):
        model = Model().eval()
        assert run(lambda: model.norm.training, model, training=True)
        assert not model.norm.training

    def test_none_leaves_each_as_it_stands(self):
        model = Model()
        model.norm.eval()
        during = run(lambda: (model.training, model.norm.training), model)
        assert during == (True, False)

    def test_a_model_that_refuses_train_and_eval_is_switched_all_the_same(self):
        class Refusing(nn.Module):
            def train(self, mode=True):
                raise NotImplementedError

        model = Refusing()
        assert run(lambda: model.training, model, training=False) is False
        assert model.training

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
    def test_one_that_talks_to_other_processes_is_on_its_own(self):
        # As `DistributedDataParallel` in a model, whose other processes may draw nothing.
        module = nn.Linear(2, 2)
        module.require_forward_param_sync = module.require_backward_grad_sync = True
        with Snapshot([module]):
            talks = module.require_forward_param_sync, module.require_backward_grad_sync
        assert talks == (False, False)
        assert module.require_forward_param_sync
        assert module.require_backward_grad_sync

    def test_a_scripted_module_is_switched_and_kept(self):
        model = torch.jit.script(nn.BatchNorm1d(2))
        x = torch.rand(4, 2)

        def act():
            assert not model.training
            model.running_mean.add_(3)
            return model(x)

        run(act, model, training=False)
        assert model.training
        assert model.running_mean.tolist() == [0, 0]


class TestAttributes:
    def test_they_are_set_back_removed_and_added_again(self):
        model = Model()
        before = dict(vars(model))

        def act():
            model.count += 1
            model.new = 3
            del model.box
            model.plain = torch.ones(2)

        run(act, model)
        assert list(vars(model)) == list(before)
        assert all(vars(model)[name] is held for name, held in before.items())

    @pytest.mark.parametrize(
        ("held", "change"),
        [
            ([1, 2], lambda held: held.append(3)),
            ([], lambda held: held.append(3)),
            ([1, 2], lambda held: held.reverse()),
            ({"a": 1}, lambda held: held.update(a=2)),
            ({"a": 1, "b": 2}, lambda held: held.update(a=held.pop("a"))),
            ({}, lambda held: held.update(a=2)),
            ({1}, lambda held: held.add(2)),
            (deque([1, 2], maxlen=2), lambda held: held.append(3)),
            (OrderedDict(a=1, b=2), lambda held: held.move_to_end("a")),
            (defaultdict(list, a=[1]), lambda held: held["b"].append(1)),
            (Counter("aab"), lambda held: held.update("c")),
            ({"a": [1]}, lambda held: held["a"].append(2)),
            (([1],), lambda held: held[0].append(2)),
            ([{"a": {1}}], lambda held: held[0]["a"].clear()),
            (bytearray(b"ab"), lambda held: held.extend(b"c")),
        ],
        ids=lambda given: type(given).__name__,
    )
    def test_containers_hold_what_they_held(self, held, change):
        model = Model()
        model.held = held
        before = repr(held)
        run(lambda: change(model.held), model)
        assert model.held is held
        assert repr(held) == before

    def test_a_container_of_a_class_of_ones_own_is_not_asked(self):
        class Guarded(dict):
            def clear(self):
                raise AssertionError

            update = copy = __iter__ = items = clear

        model = Model()
        model.held = Guarded(a=1)
        run(lambda: dict.__setitem__(model.held, "b", 2), model)
        assert dict.__len__(model.held) == 1

    def test_objects_of_the_models_own_package_are_kept_too(self):
        model = Model()

        def act():
            model.box.items.append(2)
            model.box.tensor += 1
            model.box.new = 3

        run(act, model)
        assert vars(model.box).keys() == {"items", "tensor"}
        assert model.box.items == [1]
        assert model.box.tensor.tolist() == [0, 0]

    def test_objects_of_other_packages_are_kept_too(self):
        model = Model()
        model.config = BatchEncoding({"a": 1})
        run(lambda: model.config.data.update(a=2), model)
        assert model.config["a"] == 1

    def test_children_hooks_parameters_and_buffers_come_back(self):
        model = Model()
        weight, seen, fc = model.fc.weight, model.seen, model.fc
        handle = model.register_forward_hook(lambda *given: None)

        def act():
            model.extra = nn.Linear(2, 2)
            model.seen = model.seen + 1
            model.fc.weight = nn.Parameter(torch.ones(2, 2))
            model.fc.register_buffer("late", torch.zeros(1))
            model.fc.register_forward_pre_hook(lambda *given: None)
            handle.remove()
            del model.fc

        run(act, model)
        assert list(model._modules) == ["fc", "norm"]
        assert model.fc is fc
        assert model.fc.weight is weight
        assert model.seen is seen
        assert not fc._buffers
        assert not fc._forward_pre_hooks
        assert len(model._forward_hooks) == 1

    def test_the_class_comes_back(self):
        class Other(Model):
            pass

        model = Model()
        run(lambda: setattr(model, "__class__", Other), model)
        assert type(model) is Model

    def test_a_module_met_late_can_be_added(self):
        hidden = nn.BatchNorm1d(2)

        with Snapshot([], training=False) as preserved, Telling(preserved):
            preserved.add_module(hidden)
            assert not hidden.training
            hidden.running_mean.add_(1)
            hidden.note = 1
        assert hidden.training
        assert not hasattr(hidden, "note")
        assert hidden.running_mean.tolist() == [0, 0]


class TestContents:
    @pytest.mark.parametrize(
        "tensor_of",
        [
            lambda model: model.fc.weight.data,
            lambda model: model.fc.weight.detach()[0],
            lambda model: model.seen,
            lambda model: model.norm.num_batches_tracked,
            lambda model: model.plain,
            lambda model: model.box.tensor,
        ],
    )
    def test_what_a_model_writes_into_itself_is_undone(self, tensor_of):
        model = Model()
        tensor = tensor_of(model)
        before = tensor.clone()
        run(lambda: tensor_of(model).add_(1), model)
        assert torch.equal(tensor_of(model), before)
        assert tensor_of(model).data_ptr() == tensor.data_ptr()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.arange(6.0).reshape(2, 3),
            lambda: torch.arange(6.0).reshape(2, 3).t(),
            lambda: torch.arange(12.0).reshape(2, 6)[:, ::2],
            lambda: torch.tensor(3.0),
            lambda: torch.zeros(0),
            lambda: torch.tensor([True, False]),
            lambda: torch.tensor([1 + 2j]).conj(),
            lambda: torch.tensor([1, 2], dtype=torch.int8),
            lambda: torch.eye(2).to_sparse(),
            lambda: torch.eye(2).to_sparse_csr(),
            lambda: torch.ones(2).to_mkldnn(),
            lambda: torch.zeros(2, device="meta"),
            lambda: nn.Parameter(torch.ones(2)),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
    def test_an_input_of_any_kind_keeps_its_content(self, make):
        x = make()
        before = x.detach().clone()
        version = x._version

        def act():
            with torch.no_grad():
                x.zero_()

        run(act, inputs=x)
        assert x.is_meta or torch.equal(x.detach().to_dense(), before.to_dense())
        assert x._version == version

    @pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_a_nested_input_keeps_its_content(self, layout):
        x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        run(lambda: x.mul_(0), inputs=x)
        assert [row.tolist() for row in x.unbind()] == [[1, 1], [1, 1, 1]]

    def test_a_wrapper_keeps_what_it_wraps(self):
        x = TwoTensor(torch.ones(2), torch.ones(2))
        run(lambda: x.mul_(0), inputs=x)
        assert (x.a.tolist(), x.b.tolist()) == ([1, 1], [1, 1])

    def test_a_tensor_of_inference_mode_keeps_its_content(self):
        with torch.inference_mode():
            x = torch.ones(2)

        def act():
            with torch.inference_mode():
                x.zero_()

        run(act, inputs=x)
        assert x.tolist() == [1, 1]

    def test_views_of_one_storage_come_back_together(self):
        base = torch.arange(6.0)
        left, right = base[:4], base[2:]

        def act():
            left.zero_()
            right.add_(1)

        run(act, inputs=[left, right])
        assert base.tolist() == [0, 1, 2, 3, 4, 5]

    def test_a_small_view_does_not_copy_the_whole_of_a_large_storage(self):
        base = torch.zeros(1_000)
        preserved = Snapshot([], [base[10:12], base[20:21]])
        with preserved:
            preserved.about_to_write(base)
            base.fill_(7)
        assert base[10:21].tolist() == [0] * 11
        assert base[:10].tolist() == [7] * 10
        assert base[21:].tolist() == [7] * 979

    def test_a_view_that_is_met_after_a_write_keeps_what_was_there_before_it(self):
        base, hidden = torch.zeros(4), nn.Module()
        hidden.register_buffer("part", base[:2])
        version = base._version
        with Snapshot([], base) as preserved, Telling(preserved):
            base.add_(1)
            preserved.add_module(hidden)
            base.add_(1)
        assert base.tolist() == [0, 0, 0, 0]
        assert base._version == version

    def test_a_part_of_an_array_that_is_met_after_a_write_is_as_the_array_was(self):
        base, hidden = np.zeros(4), nn.Module()
        with Snapshot([], base) as preserved:
            base += 1
            hidden.part = base[:2]
            preserved.add_module(hidden)
        assert base.tolist() == [0, 0, 0, 0]

    def test_a_tensor_nobody_asked_to_keep_is_not_kept(self):
        x = torch.zeros(2)
        run(lambda: x.add_(1), Model(), inputs=torch.zeros(1))
        assert x.tolist() == [1, 1]

    def test_a_graph_of_autograd_made_before_still_works(self):
        model = Model()
        loss = (model.fc(torch.ones(1, 2)) ** 2).sum()

        def act():
            with torch.no_grad():
                model.fc.weight.mul_(2)

        run(act, model)
        loss.backward()
        assert model.fc.weight.grad is not None

    @pytest.mark.parametrize(
        "change",
        [
            lambda x: x.resize_(10),
            lambda x: x.t_(),
            lambda x: x.unsqueeze_(0),
            lambda x: x.set_(torch.ones(3)),
            lambda x: setattr(x, "data", torch.ones(3)),
            lambda x: setattr(x, "data", x.data.double()),
            lambda x: setattr(x, "data", x.data.view(3, 2)),
            lambda x: x.untyped_storage().resize_(64),
            lambda x: x.squeeze_().mul_(2).resize_(1),
        ],
    )
    def test_shape_and_place_come_back(self, change):
        x = torch.arange(6.0).reshape(2, 3)
        before, key = x.clone(), x.untyped_storage()._cdata
        run(lambda: change(x), inputs=x)
        assert torch.equal(x, before)
        assert (x.stride(), x.untyped_storage()._cdata) == ((3, 1), key)

    def test_a_parameter_may_be_rebound_to_other_data(self):
        model = Model()
        weight, before = model.fc.weight, model.fc.weight.detach().clone()
        run(lambda: setattr(weight, "data", weight.data.clamp(0, 0)), model)
        assert model.fc.weight is weight
        assert torch.equal(weight, before)


class TestGradients:
    def backward(self, model):
        model.fc(torch.ones(1, 2)).sum().backward()

    def test_none_were_there_and_none_are(self):
        model = Model()
        run(lambda: self.backward(model), model)
        assert model.fc.weight.grad is None

    def test_what_was_summed_up_is_what_it_was(self):
        model = Model()
        self.backward(model)
        gradient = model.fc.weight.grad
        run(lambda: self.backward(model), model)
        assert model.fc.weight.grad is gradient
        assert gradient.tolist() == [[1, 1], [1, 1]]

    def test_they_are_not_lost_to_zero_grad(self):
        model = Model()
        self.backward(model)
        gradient = model.fc.weight.grad
        run(lambda: model.zero_grad(set_to_none=True), model)
        assert model.fc.weight.grad is gradient

    def test_requires_grad_comes_back(self):
        model = Model()
        run(lambda: model.requires_grad_(False), model)
        assert all(parameter.requires_grad for parameter in model.parameters())

    def test_a_buffer_keeps_no_history(self):
        model = Model()
        run(lambda: model.seen.add_(model.fc.weight[0]), model)
        assert model.seen.grad_fn is None
        assert not model.seen.requires_grad
        assert model.seen.tolist() == [0, 0]


def sizes_of(tensors):
    """Give the bytes that tensors take, which those that are lazy do not tell."""
    with torch._C.DisableTorchFunctionSubclass():
        return [tensor.untyped_storage().nbytes() for tensor in tensors]


class TestLazyModules:
    @pytest.mark.parametrize(
        ("make", "x"),
        [
            (lambda: nn.LazyLinear(2), torch.ones(1, 3)),
            (lambda: nn.LazyConv1d(2, 1), torch.ones(1, 3, 4)),
            (nn.LazyBatchNorm1d, torch.ones(2, 3)),
        ],
    )
    def test_one_is_lazy_again(self, make, x):
        model = make()
        tensors = [*model.parameters(), *model.buffers()]
        kinds, cls, state = [*map(type, tensors)], type(model), list(vars(model))
        sizes = sizes_of(tensors)
        hooks = dict(model._forward_pre_hooks)
        run(lambda: model(x), model)
        assert type(model) is cls
        assert model.has_uninitialized_params()
        assert [*map(type, tensors)] == kinds
        assert sizes_of(tensors) == sizes
        assert all(
            now is then
            for now, then in zip([*model.parameters(), *model.buffers()], tensors, strict=True)
        )
        assert dict(model._forward_pre_hooks) == hooks
        assert list(vars(model)) == state

    def test_one_can_still_be_used_and_loaded(self):
        model = nn.LazyLinear(2)
        run(lambda: model(torch.ones(1, 3)), model)
        model.load_state_dict(nn.Linear(5, 2).state_dict())
        assert model.weight.shape == (2, 5)
        assert model(torch.ones(1, 5)).shape == (1, 2)
        assert type(model) is nn.Linear


class TestInputs:
    def test_their_containers_hold_what_they_held(self):
        x = torch.zeros(2)
        batch = {"x": x, "list": [x], "record": Batch(x), "slotted": Slotted(x)}

        def act():
            batch.pop("x")
            batch["list"].append(1)
            batch["record"].names.append("a")
            batch["record"].image = None
            batch["slotted"].image = None
            del batch["slotted"].label
            x.add_(1)

        run(act, inputs=((batch,), {}))
        assert list(batch) == ["x", "list", "record", "slotted"]
        assert len(batch["list"]) == 1
        assert batch["record"].image is x
        assert batch["record"].names == []
        assert batch["slotted"].image is x
        assert batch["slotted"].label is None
        assert x.tolist() == [0, 0]

    def test_an_object_keeps_its_slots_as_empty_as_they_were(self):
        record = Slotted(1)
        del record.label
        run(lambda: setattr(record, "label", 2), inputs=record)
        assert not hasattr(record, "label")

    def test_the_cache_of_a_decoder_is_as_long_as_before(self):
        cache = DynamicCache()
        step = torch.ones(1, 1, 2, 2)
        cache.update(step, step, 0)

        def act():
            cache.update(step, step, 0)
            cache.update(step, step, 1)

        run(act, inputs={"past_key_values": cache})
        assert len(cache.layers) == 1
        assert cache.layers[0].keys.shape == (1, 1, 2, 2)

    def test_a_batch_of_transformers_is_as_before(self):
        batch = BatchEncoding({"ids": torch.zeros(1)})
        run(lambda: batch.pop("ids"), inputs=batch)
        assert list(batch) == ["ids"]


class TestProcess:
    def test_the_random_generators_go_on_as_if_nothing_had_run(self):
        legacy = np.random.mtrand._rand  # What np.random.rand() and the like draw from.
        states = random.getstate(), legacy.get_state()[1].tolist(), torch.get_rng_state()
        run(lambda: (random.random(), legacy.rand(), torch.rand(1)))
        assert random.getstate() == states[0]
        assert legacy.get_state()[1].tolist() == states[1]
        assert torch.equal(torch.get_rng_state(), states[2])

    @pytest.mark.parametrize(
        ("make", "draw"),
        [
            (torch.Generator, lambda made: torch.rand(1, generator=made).item()),
            (random.Random, lambda made: made.random()),
            (np.random.default_rng, lambda made: made.random()),
            (np.random.RandomState, lambda made: made.rand()),
        ],
    )
    def test_so_do_those_that_a_model_or_an_input_holds(self, make, draw):
        model = Model()
        model.generator, given = make(), [make()]
        drawn = run(lambda: (draw(model.generator), draw(given[0])), model, inputs=given)
        assert (draw(model.generator), draw(given[0])) == drawn

    @pytest.mark.parametrize(
        ("read", "change"),
        [
            (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
            (torch.get_default_device, lambda: torch.set_default_device("meta")),
            (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
            (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
            (
                torch.are_deterministic_algorithms_enabled,
                lambda: torch.use_deterministic_algorithms(True),
            ),
            (
                lambda: torch.is_autocast_enabled("cpu"),
                lambda: torch.set_autocast_enabled("cpu", True),
            ),
            (
                lambda: torch.get_autocast_dtype("cpu"),
                lambda: torch.set_autocast_dtype("cpu", torch.float16),
            ),
            (
                lambda: torch.backends.cudnn.benchmark,
                lambda: setattr(torch.backends.cudnn, "benchmark", True),
            ),
            (
                lambda: torch.backends.cudnn.enabled,
                lambda: setattr(torch.backends.cudnn, "enabled", False),
            ),
            (
                lambda: torch.backends.cudnn.deterministic,
                lambda: setattr(torch.backends.cudnn, "deterministic", True),
            ),
            (
                torch.is_deterministic_algorithms_warn_only_enabled,
                lambda: torch.use_deterministic_algorithms(False, warn_only=True),
            ),
            (
                lambda: torch.get_autocast_dtype("cuda"),
                lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
            ),
        ],
    )
    def test_settings_of_torch_come_back(self, read, change):
        before = read()
        with Snapshot([]):
            change()
            assert read() != before
        assert read() == before

    def test_a_default_device_that_was_set_comes_back(self):
        torch.set_default_device("cpu")
        try:
            with Snapshot([]):
                torch.set_default_device("meta")
            assert torch.get_default_device() == torch.device("cpu")
        finally:
            set_default_device(None)


class TestFailures:
    def test_all_comes_back_after_an_error(self):
        model, x = Model(), torch.zeros(2)

        def act():
            model.count = 5
            x.add_(1)
            random.random()
            raise KeyError("in the model")

        state = random.getstate()
        with pytest.raises(KeyError):
            run(act, model, inputs=x, training=False)
        assert model.count == 0
        assert model.training
        assert x.tolist() == [0, 0]
        assert random.getstate() == state

    def test_what_cannot_come_back_is_told_and_the_rest_comes_back(self):
        model, x = Model(), torch.zeros(2, requires_grad=True) * 1
        state = random.getstate()

        def act():
            x.add_(1)
            model.count = 5
            random.random()

        with pytest.raises(TraceError) as caught:
            run(act, model, inputs=x)
        assert str(caught.value) == "\n".join(
            [
                "the model could not be put back as it was before the run",
                "  why: a Tensor of shape (2): RuntimeError: "
                "a write has changed its history in autograd",
                "  fix: make the model again, or load its state_dict, before you use it",
            ]
        )
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert model.count == 0
        assert x.tolist() == [0, 0]
        assert random.getstate() == state

    @pytest.mark.parametrize("written", [True, False])
    def test_the_first_of_several_failures_is_the_cause_of_what_is_told(self, written):
        class Stuck(random.Random):
            def setstate(self, state):
                raise ValueError("stuck")

        x = torch.zeros(2, requires_grad=True) * 1
        with pytest.raises(TraceError, match="the generator Stuck: ValueError: stuck") as caught:
            run(lambda: x.add_(1) if written else None, inputs=[x, Stuck()])
        assert type(caught.value.__cause__) is (RuntimeError if written else ValueError)
        assert ("changed its history" in str(caught.value)) == written

    @pytest.mark.parametrize("silent", [True, False])
    def test_tensors_that_do_not_answer_any_more_are_told_and_the_rest_comes_back(self, silent):
        class Moody(torch.Tensor):
            silent = False

            @property
            def shape(self):
                if self.silent:
                    raise RuntimeError("no more questions")
                return super().shape

        model, state = Model(), random.getstate()
        model.seen = torch.zeros(2).as_subclass(Moody)

        def act():
            model.count = 5
            random.random()
            # Beside other threads only tensors that the run has set are looked at again.
            model.seen.requires_grad_(True)
            Moody.silent = silent

        expected = pytest.raises(TraceError, match="why: the tensors: RuntimeError: no more quest")
        with expected if silent else contextlib.nullcontext():
            run(act, model)
        assert (model.count, random.getstate()) == (0, state)

    def test_an_error_of_the_model_goes_on_with_a_note(self):
        x = torch.zeros(2, requires_grad=True) * 1

        def act():
            x.add_(1)
            raise KeyError("in the model")

        with pytest.raises(KeyError) as caught:
            run(act, inputs=x)
        [note] = caught.value.__notes__
        assert note.startswith("the model could not be put back as it was before the run\n")

    def test_a_block_that_could_not_begin_leaves_nothing_changed(self):
        model = Model()
        preserved = Snapshot([model, object()], training=False)  # type: ignore[list-item]
        with pytest.raises(AttributeError), preserved:
            raise AssertionError
        assert model.training


def test_watching_writes_runs_no_operation_that_a_mode_would_see():
    seen = []

    class Listening(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    model, x = Model(), torch.zeros(2)
    preserved = Snapshot([model], x)
    with Listening(), preserved:
        preserved.about_to_write(x)
        preserved.about_to_write(model.seen)
    assert [func for func in seen if "rng_state" not in str(func)] == []


def test_a_view_whose_base_was_written_since_is_kept_though_nobody_tells_its_history():
    base = torch.rand(4, requires_grad=True).clone()
    model = nn.Linear(2, 2)
    model.seen, other = base.chunk(2)
    with torch.no_grad():
        base.mul_(2)
    with pytest.raises(RuntimeError):
        assert model.seen.grad_fn
    before = model.seen.tolist(), other.tolist()
    run(lambda: None, model)
    assert (model.seen.tolist(), other.tolist()) == before
