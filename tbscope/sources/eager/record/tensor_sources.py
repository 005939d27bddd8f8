"""Source nodes for tensors that no watched operation returned: inputs, parameters, constants.

`TensorSources.value_of` returns the value of any tensor. A tensor without a recorded value is
looked up in this order, until a step succeeds: the fake tensor that replaces it; results of
backward passes that are one operation each; inner tensors of wrappers, and wrappers with changed
inner tensors; wrappers of `vmap`, `grad` and `jvp`; tensors made of other tensors that have values;
tensors kept by a training step (saved tensors, optimizer state, gradients from before); aliases;
parameters that ranks have gathered; parameters and buffers of modules; local shards of these;
inputs; buckets of written parts. Else the tensor becomes a constant, or an input in a recorded
region outside of modules.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tbscope.ir.graph import Argument, Node, Value
from tbscope.ir.nodes import OPERATIONS
from tbscope.sources.eager.record.events import ignore_event
from tbscope.sources.eager.record.manual_updates import origin_of
from tbscope.sources.eager.record.operation import KernelRun
from tbscope.sources.eager.record.scope_stack import ScopeStack
from tbscope.sources.eager.record.tensors.tensor_table import InnerTensor
from tbscope.sources.eager.record.tensors.values import TensorValues
from tbscope.sources.torch.calling.argument_values import FILLED, collect_tensors
from tbscope.sources.torch.calling.pytree import tensor_leaves
from tbscope.sources.torch.compat.tensors import (
    batch_dimension,
    functorch_inner,
    key_of_storage,
    map_tensors,
    storage_key,
    without_functions,
)
from tbscope.sources.torch.distributed import is_distributed
from tbscope.sources.torch.module_names import ModuleEntry, TensorEntry
from tbscope.sources.torch.subclasses import (
    PLAIN,
    content_of,
    inner_tensors,
    is_wrapper,
    may_have_inner_tensors,
    storage_keys,
    subclass_attributes,
)


class TensorSources:
    """Search for the value of any tensor; a tensor not seen before gets a node.

    Args:
        scopes: The open scopes.
        values: The values of tensors.
        open_ended: Whether an unknown tensor is an input while no module runs.

    Attributes:
        scopes: The open scopes.
        values: The values of tensors.
        open_ended: As the argument.
        stand_in: Returns the fake tensor that replaces a tensor, or the tensor itself if none does.
        from_step: Returns the value of a tensor that a training step has kept, or None for any
            other tensor.
        replaced: The modules whose tensors are replaced by other tensors now.
        distributed: Whether this is a process of a distributed run.
    """

    def __init__(self, scopes: ScopeStack, values: TensorValues, *, open_ended: bool) -> None:
        self._builder = values.builder
        self.scopes = scopes
        self._registry = scopes.registry
        self.values = values
        self._records = values.table.records
        self.open_ended = open_ended
        self.replaced: list[ModuleEntry] = []
        self.distributed = is_distributed()
        self.from_step: Callable[[torch.Tensor], Value | None] = ignore_event
        self.stand_in: Callable[[torch.Tensor], torch.Tensor] = _itself
        # The number of registered tensors at the last search for shards, and the tensors spread
        # over ranks then, by storage.
        self._spread: tuple[int, dict[int, torch.Tensor]] = (0, {})
        # By identity; a reference to each tensor keeps its identity from reuse.
        self._hidden: dict[int, tuple[str, torch.Tensor]] = {}

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Return the current value of a tensor; a tensor not seen before gets a new value."""
        # As `values.seen()`, without a call: this runs for each tensor that an operation reads.
        record = self._records.get(id(tensor))
        if record is not None and record.tensor() is tensor:
            value = record.value
            # Inner tensors may have changed since.
            if value is not None and record.parts is None:
                return value
        if type(tensor) in PLAIN:
            return self._discover(tensor)
        # A subclass may answer a query of its shape by Python code of its own.
        with without_functions():
            return self._discover(tensor)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has a value, is in a wrapper, is an alias, or is of a module."""
        return (
            self.values.table.record(tensor) is not None
            or self._registry.tensor(tensor) is not None
            or self.values.find(tensor) is not None
        )

    def lying_in(
        self, storage: torch.UntypedStorage, others: list[torch.Tensor]
    ) -> torch.Tensor | None:
        """Return the tensor that was made last in a storage, or None for an unknown storage.

        Args:
            storage: The storage.
            others: Tensors to be skipped.
        """
        key, left_out = key_of_storage(storage), set(map(id, others))
        made = (tensor for tensor, _ in reversed(self.values.alive()))
        for tensor in itertools.chain(made, self._registry.tensors()):
            if storage_key(tensor) == key and id(tensor) not in left_out:
                return tensor
        return None

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Make a tensor an input of the graph under this path.

        If the tensor has a value already, the path is added to the attribute `also` of its
        producer.
        """
        known = self.values.find(tensor)
        if known is not None:
            attributes = known.producer.attributes
            attributes["also"] = f"{attributes['also']}, {name}" if "also" in attributes else name
            return
        with without_functions():
            self.values.give(self._builder.append_source("input", name), tensor)

    def name_of_leaf(self, leaf: torch.Tensor) -> tuple[str, str]:
        """Return the qualified name of a leaf tensor, and the last part of it.

        A leaf that no module registers is named after its input, or after the operation that made
        it.
        """
        entry = self._registry.tensor(leaf)
        if entry is not None:
            return entry.qualified_name, entry.attribute
        value = self.values.find(leaf)
        if value is None:
            return "leaf", "leaf"
        node = value.producer
        name = node.op if node.kind == "op" else node.name
        return name, name

    def add_hidden_input(self, name: str, tensor: torch.Tensor) -> None:
        """Make a tensor an input under this path as soon as an operation reads it."""
        if self.values.find(tensor) is None:
            self._hidden.setdefault(id(tensor), (name, tensor))

    def add_unknown(self, arguments: list[tuple[str, Any]]) -> None:
        """Make inputs of the tensors that come from outside of a region.

        Args:
            arguments: Pytrees with their names. Tensors at public paths become inputs now, all
                other tensors as soon as an operation reads them.
        """
        for name, nest in arguments:
            for path, tensor in tensor_leaves(nest, name, public=True):
                if not self.is_known(tensor):
                    self.add_input(path, tensor)
            for path, tensor in tensor_leaves(nest, name):
                self.add_hidden_input(path, tensor)

    def forget(self) -> None:
        """Release all tensors after the run."""
        self._hidden.clear()
        self.from_step = ignore_event

    def add_bucket(self, tensor: torch.Tensor, op: str = "bucket") -> Value | None:
        """Add a node for an unseen tensor into parts of which operations wrote.

        Returns:
            Its value, or None if no write into it is recorded.
        """
        writes = self.values.writes.touching(tensor, -1)
        values = list(dict.fromkeys(write.value for write in reversed(writes)))
        if not values:
            return None
        node = self._step(op, values)
        node.phase = values[-1].producer.phase
        return self.values.give(node, tensor)

    def without_filled(
        self, joined: Sequence[KernelRun], arguments: object, filled: list[torch.Tensor]
    ) -> Any:
        """Return the arguments of an operation without the unseen tensors that are only filled.

        Unseen tensors that are sent to other ranks get values by their memory: torch collects
        gradients in a tensor of its own, and each gradient is a view of it.

        Args:
            joined: The kernels of the operation that have communicated.
            arguments: A pytree of its arguments.
            filled: Receives the tensors that are left out.
        """
        for facts, args, kwargs, *_ in joined:
            exchange = facts.exchange
            assert exchange is not None, "it has communicated"
            tensors = exchange.tensors(facts.kernel, args, kwargs)
            for tensor in collect_tensors(tensors[:1], []):
                if not self.is_known(tensor):
                    self.add_bucket(tensor)
            if exchange.taken != exchange.given:
                taken = collect_tensors(tensors[bool(exchange.given) :], [])
                filled += [tensor for tensor in taken if not self.is_known(tensor)]
        left = {id(tensor) for tensor in filled}
        return map_tensors(lambda each: FILLED if id(each) in left else each, arguments)

    def _discover(self, tensor: torch.Tensor) -> Value:
        """Search for a tensor without a recorded value, in the order of the module docstring."""
        fake = self.stand_in(tensor)
        if fake is not tensor:
            return self.value_of(fake)
        values = self.values
        value = None if values.from_pass is None else values.from_pass(tensor)
        # Most models have no wrappers.
        if value is None and values.table.any_composed:
            value = self._value_of_wrapped(tensor)
        if value is not None:
            return value
        wrapped = functorch_inner(tensor)
        if wrapped is not None:
            return self._entered(tensor, self.value_of(wrapped))
        entry = self._registry.tensor(tensor)
        if entry is not None:
            made = self._made_of_known(tensor) if values.table.any_composed else None
            return made or values.give(self._registered(tensor, entry), tensor)
        for find in (
            # The local shard identifies a tensor that is spread over ranks, also in a backward
            # pass.
            self._composed,
            self.from_step,
            self._aliased,
            self._gathered,
            self._registered_late,
            self._local_shard,
            self._announced,
            self._written_in_parts,
            self._from_outside,
        ):
            value = find(tensor)
            if value is not None:
                return value
        return values.give(self._constant(tensor), tensor)

    def _gathered(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a parameter that ranks have gathered, or None."""
        if not self.distributed or not self._replaces_parameter(tensor):
            return None
        gathered = self.add_bucket(tensor, "gathered")
        if gathered is not None:
            self._register_replacement(tensor)
        return gathered

    def _registered_late(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that the running module registered since it ran, or None."""
        entry, names = self._names_of(tensor)
        if entry is None or not names:
            return None
        if self._is_replaced(entry) and self._registry.knows(entry, names):
            return None
        self._registry.refresh(entry)
        late = self._registry.tensor(tensor)
        return None if late is None else self.values.give(self._registered(tensor, late), tensor)

    def _local_shard(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of the local shard of a parameter that is spread over ranks, or None."""
        if not self.distributed:
            return None
        count = len(self._registry.by_tensor)
        if self._spread[0] != count:
            subclasses = [each for each in self._registry.tensors() if type(each) not in PLAIN]
            self._spread = count, {key: each for each in subclasses for key in storage_keys([each])}
        for key in self._spread[1].keys() & storage_keys([tensor]):
            whole = self.value_of(self._spread[1][key])
            return self.values.give(self._view("local_tensor", whole, None), tensor)
        return None

    def _announced(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of an input that becomes one as an operation reads it, or None."""
        entry = self._hidden.get(id(tensor))
        if entry is None:
            return None
        return self.values.give(self._builder.append_source("input", entry[0]), tensor)

    def _written_in_parts(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor into parts of which ranks wrote, or None."""
        return self.add_bucket(tensor) if self.distributed else None

    def _from_outside(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor from outside of a recorded region, or None."""
        if not (self.open_ended and self.scopes.at_top):
            return None
        return self.values.give(self._builder.append_source("input", "input"), tensor)

    # -- tensors that are made of others ------------------------------------------------

    def _value_of_wrapped(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of an inner tensor or of a wrapper, or None for any other tensor.

        An inner tensor gets the node that takes it out; a wrapper gets a node that makes it anew if
        its inner tensors have changed.
        """
        table = self.values.table
        inside = table.inside(tensor)
        if inside is not None:
            value = self._taken_out(inside)
            table.set_value(tensor, value)
            return value
        before = self.values.seen(tensor)
        if before is None:
            return None
        changed = table.changed(tensor)
        return self._made(tensor, [before], changed) if changed else before

    def _entered(self, tensor: torch.Tensor, value: Value) -> Value:
        """Return the value of a wrapper of `vmap`, `grad` or `jvp` around a tensor with a value."""
        dimension = batch_dimension(tensor)
        if dimension is None:
            self.values.table.set_value(tensor, value)
            return value
        node = self._view("add_batch_dim", value, dimension)
        node.control_inputs = self.values.earlier_writers([tensor], [value])
        return self.values.make(node, tensor)

    def _taken_out(self, inside: InnerTensor) -> Value:
        """Return the value of an inner tensor; add the nodes that take it out of its wrappers."""
        if inside.value is None:
            outer = inside.outer
            value = self._taken_out(outer) if isinstance(outer, InnerTensor) else outer
            if inside.op is not None:
                node = self._view(inside.op, value, inside.dimension)
                if (tensor := inside.tensor()) is not None:
                    node.control_inputs = self.values.earlier_writers([tensor], [value])
                value = self._builder.add_value(node, inside.shape, inside.dtype, inside.device)
            inside.value = value
        return inside.value

    def _made_of_known(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a registered tensor that was made of others, or None."""
        return self._aliased(tensor) or (
            # The parameter itself, unless it is the alias of another tensor.
            self._composed(tensor) if self.values.table.alias(tensor) is not None else None
        )

    def _aliased(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of the tensor of which a tensor is an alias, or None."""
        table = self.values.table
        value = None if may_have_inner_tensors(type(tensor)) else table.alias(tensor)
        if value is not None:
            if self._replaces_parameter(tensor):
                # The origin is recorded: ranks have gathered the tensor, or forward has made it.
                self._register_replacement(tensor)
            table.set_value(tensor, value)
        return value

    def _composed(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that is made of other tensors, one of which has a value."""
        table = self.values.table
        if not may_have_inner_tensors(type(tensor)):
            return None
        face = table.alias(tensor) or self.values.value_in_same_storage(tensor)
        parts = [part for _, part in inner_tensors(tensor)]
        leading = [part for part in parts if self._leads_on(part)]
        if face is None and not leading:
            return None
        if is_wrapper(type(tensor)) and (leading or not self.distributed):
            leading = parts
        first = [] if face is None else [face]
        alone = not first and len(leading) == 1 and table.is_all(tensor, leading[0])
        if leading and not alone:
            return self._made(tensor, first, leading)
        value = face or self.value_of(leading[0])
        table.set_value(tensor, value)
        return value

    def _leads_on(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor, or a tensor inside of it, has a value."""
        if self.is_known(tensor) or functorch_inner(tensor) is not None:
            return True
        return may_have_inner_tensors(type(tensor)) and any(
            self._leads_on(part) for _, part in inner_tensors(tensor)
        )

    def _made(self, tensor: torch.Tensor, first: list[Value], parts: list[torch.Tensor]) -> Value:
        """Add a node that makes a tensor of other tensors; return its value.

        Args:
            tensor: The tensor.
            first: Values that come first among the inputs.
            parts: The other tensors.
        """
        values = [*first, *map(self.value_of, parts)]
        node = self._step(type(tensor).__name__, list(dict.fromkeys(values)))
        if len(node.inputs) == 1:
            # It only wraps the other tensor (a gradient that is spread over ranks).
            node.role = "view"
        node.control_inputs = self.values.earlier_writers([tensor] * len(first) + parts, values)
        return self.values.make(node, tensor)

    def _view(self, op: str, value: Value, dimension: int | None) -> Node:
        node = self._step(op, [value])
        node.role = "view"
        if dimension is not None:
            node.arguments.append(Argument(None, dimension))
        return node

    def _step(self, op: str, inputs: list[Value]) -> Node:
        """Add a node for a step that no mode has seen as an operation."""
        running = self.scopes.running
        scope, near = running.inner, inputs[-1].producer.scope
        # No module runs in a backward pass, or where its gradients are read later: the node goes
        # next to its last input.
        outside = running.call is None or (scope is not None and scope.phase == "backward")
        if outside and near is not None and near.phase == "backward":
            scope = near
        node = self.values.append(op, scope, inputs, running.source)
        if scope is not None:
            node.phase = scope.phase
        return node

    def _replaces_parameter(self, tensor: torch.Tensor) -> bool:
        """Whether the running module has this tensor in the place of a tensor that it registered.

        A sharded module has its gathered parameter there while it runs.
        """
        entry, names = self._names_of(tensor)
        if entry is None or not names or self._registry.tensor(tensor) is not None:
            return False
        return self._registry.knows(entry, names) and not self._is_replaced(entry)

    def _is_replaced(self, entry: ModuleEntry | None) -> bool:
        """Whether the tensors of a module, or of a module that contains it, are replaced now."""
        while self.replaced and entry is not None:
            if entry in self.replaced:
                return True
            entry = entry.parent
        return False

    def filled_by(self, out: list[torch.Tensor]) -> dict[str, str]:
        """Return the attribute `fills` of an operation: the names of tensors in its `out`.

        Args:
            out: The tensors; those that the run made do not count, unless they are views of
                tensors from before the run.
        """
        names = [name for tensor in out if (name := self._name_from_before(tensor))]
        return {"fills": ", ".join(dict.fromkeys(names))} if names else {}

    def _name_from_before(self, tensor: torch.Tensor) -> str | None:
        """Return the name of a tensor from before the run, or None for a result of the run."""
        entry = self._registry.tensor(tensor)
        if entry is not None:
            return entry.qualified_name
        value = self.values.find(tensor)
        if value is None:
            return self._attribute_name(tensor) or "a constant"
        node = origin_of(value)
        return node.attributes.get("fills", None if node.kind in OPERATIONS else node.name)

    def _register_replacement(self, tensor: torch.Tensor) -> None:
        """Register a tensor under the name of the parameter it replaces: its gradient needs it."""
        entry, names = self._names_of(tensor)
        assert entry is not None, "a module that runs holds it"
        self._registry.put_together(entry, names[0], tensor)

    def _names_of(self, tensor: torch.Tensor) -> tuple[ModuleEntry | None, list[str]]:
        """Return the module whose tables contain a tensor, and the names under which they do.

        It is the running module or, in a distributed run, a child whose parameters it uses itself.
        """
        running = self.scopes.running.entry
        children = running.module.children() if running is not None and self.distributed else ()
        for module in () if running is None else (running.module, *children):
            tables = (module._parameters, module._buffers)
            names = [name for table in tables for name, held in table.items() if held is tensor]
            if names:
                return self._registry.module(module), names
        return running, []

    # -- nodes --------------------------------------------------------------------------

    def _registered(self, tensor: torch.Tensor, entry: TensorEntry) -> Node:
        """Add a node for a parameter or buffer, in the scope of the module that owns it."""
        name, scope = entry.qualified_name, self.scopes.own_scope(entry.owner)
        node = self._builder.append_source(entry.kind, name, scope)
        self.values.names[node] = name
        node.attributes["requires_grad"] = tensor.requires_grad
        if type(tensor) not in PLAIN:
            node.attributes.update(subclass_attributes(tensor))
        return node

    def _constant(self, tensor: torch.Tensor) -> Node:
        """Add a node for a tensor from outside, named by an attribute of the running module."""
        running = self.scopes.running
        node = self._builder.append_source("constant", self._attribute_name(tensor), running.inner)
        node.source = running.source
        node.attributes.update(content_of(tensor))
        return node

    def _attribute_name(self, tensor: torch.Tensor) -> str | None:
        """Return the path of the running module's attribute that is this tensor, or None."""
        entry = self.scopes.running.entry
        if entry is not None:
            for attribute, held in vars(entry.module).items():
                if held is tensor:
                    return f"{entry.name}.{attribute}" if entry.name else attribute
        return None


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that no fake tensor replaces."""
    return tensor
