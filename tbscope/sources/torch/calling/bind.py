"""Binding of inputs: `input_to_model` and `kwargs` become the arguments of one model call."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

from tbscope.errors import InputError
from tbscope.messages import error_text, shown
from tbscope.sources.torch.calling.dummy_inputs import made_inputs
from tbscope.sources.torch.calling.signatures import (
    argument_error,
    entry_point,
    keywords_in,
    nothing_given_error,
    positional_in,
    required_in,
    signature_of,
)
from tbscope.sources.torch.compat.modules import UNINITIALIZED, ScriptModule, uncompiled
from tbscope.sources.torch.compat.tensors import map_tensors
from tbscope.utils.validation import attribute_of, entries_of, names_of

_Args: TypeAlias = tuple[Any, ...]
_Kwargs: TypeAlias = dict[str, Any]
_Call: TypeAlias = tuple[_Args, _Kwargs]

# Attributes in which a model may offer example inputs, from Lightning and transformers.
_EXAMPLES = ("example_input_array", "dummy_inputs")
_EITHER = " or ".join(_EXAMPLES)


class DummyInputs(NamedTuple):
    """A request for dummy inputs.

    Attributes:
        input_size: The sizes; None for no dummy inputs.
        dtypes: The element types.
        fake: Whether the inputs are meta tensors, which take no memory.
    """

    input_size: object = None
    dtypes: object = None
    fake: bool = False

    def inputs(self, model: object, input_to_model: object) -> _Call | None:
        """Return dummy inputs on the device of the model, or None without a request.

        Raises:
            InputError: There are types without sizes, or sizes beside `input_to_model`, or no
                inputs of these sizes and types can be made.
        """
        if self.input_size is None and self.dtypes is None:
            return None
        if self.input_size is None or input_to_model is not None:
            raise InputError(
                f"input_size={shown(self.input_size)} and dtypes={shown(self.dtypes)} do not fit",
                why="input_size= makes inputs in place of input_to_model, of the types dtypes=",
                fix="give input_size=(1, 3, 224, 224) alone, or with dtypes='float32'",
            )
        device = device_of(model)
        return made_inputs(self.input_size, self.dtypes, device=device, fake=self.fake)


def device_of(model: object) -> torch.device | None:
    """Return the device of a module's first parameter, or None without parameters."""
    first = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    return None if first is None else first.device


def bind_inputs(
    model: Callable[..., object],
    input_to_model: object = None,
    kwargs: Mapping[str, object] | None = None,
    *,
    made: "DummyInputs | None" = None,
) -> _Call:
    """Return the positional and keyword arguments with which to call the model.

    - A tensor is one argument; so is a `PackedSequence`, and any object not listed here.
    - A tuple or list: the positional arguments.
    - A mapping whose keys are parameters of forward (or are accepted by its `**kwargs`): keyword
      arguments. Any other mapping: one argument. A mapping of transformers (`BatchEncoding`)
      becomes keyword arguments if one of its keys is a parameter.
    - A named tuple whose fields are parameters of forward: keyword arguments. Any other named
      tuple: one argument or, if forward accepts its fields but not the tuple, the positional
      arguments.
    - None: the model's `example_input_array` or `dummy_inputs` (an attribute, a property, or a
      method without parameters), moved to the model's device. Without these, or if they do not
      fit: no arguments, if forward needs none.

    Args:
        model: A module or anything else that can be called.
        input_to_model: The inputs, as above.
        kwargs: Further keyword arguments.
        made: Dummy inputs to make in place of `input_to_model`.
    Returns:
        A new tuple of positional and a new dict of keyword arguments.
    Raises:
        InputError: The model cannot be called, or not with these inputs.
    """
    require_model(model)
    keywords = _checked_keywords(kwargs)
    dummies = None if made is None else made.inputs(model, input_to_model)
    if dummies is not None:
        return _Binding(model, dummies[0], keywords).checked(*dummies)
    binding = _Binding(model, input_to_model, keywords)
    if input_to_model is None:
        return binding.offered()
    return binding.checked(*binding.spread(input_to_model))


def given_inputs(
    model: Callable[..., object],
    input_to_model: object,
    kwargs: Mapping[str, object] | None,
    made: DummyInputs,
) -> _Call | None:
    """Return the arguments as `bind_inputs` does, or None if no inputs are given."""
    if input_to_model is None and not kwargs and made.input_size is None and made.dtypes is None:
        return None
    return bind_inputs(model, input_to_model, kwargs, made=made)


def require_model(model: object) -> None:
    """Check that a model can be called at all.

    Raises:
        InputError: It is no callable, a class, or a module whose `__init__` has not run.
    """
    if isinstance(model, torch.nn.Module):
        require_whole(model)
    # A call of a class only makes an object, so a class is no model.
    elif isinstance(model, type) or not callable(model):
        raise InputError(
            f"{shown(model)} is no model",
            why="a model is an instance of torch.nn.Module, or a function",
            fix="make the model, load_state_dict() into it, and give the model itself",
        )


def require_made(path: str, tensor: torch.Tensor) -> None:
    """Check that a tensor has a size.

    Raises:
        InputError: It is an uninitialized parameter of a lazy module.
    """
    if isinstance(tensor, UNINITIALIZED):
        raise InputError(
            f"{shown(path)} is an {type(tensor).__name__}, and has no size",
            why="it is made in the first call of its module",
            fix="call the module once, or give another tensor",
        )


def require_whole(model: torch.nn.Module) -> None:
    """Check that a module and all modules below it are initialized.

    Raises:
        InputError: `torch.nn.Module.__init__` has not run for it.
    """
    pending, seen = [model], {id(model)}
    while pending:
        module = pending.pop()
        if isinstance(module, ScriptModule):
            continue
        if "_modules" not in vars(module):
            raise InputError(
                f"an object of class {type(module).__name__} is only half a module",
                why="torch.nn.Module.__init__ has not run for it",
                fix=f"call super().__init__() first in {type(module).__name__}.__init__",
            )
        for child in module._modules.values():
            if isinstance(child, torch.nn.Module) and id(child) not in seen:
                seen.add(id(child))
                pending.append(child)


def callee_name(model: Callable[..., object]) -> str:
    """Return the name of the function that is called, as its author wrote it (`Net.forward`)."""
    function = entry_point(model)
    function = attribute_of(function, "func", function)
    schema = attribute_of(function, "schema")
    name = attribute_of(schema, "name") or attribute_of(function, "__name__")
    owner = attribute_of(function, "__self__")
    if isinstance(model, torch.nn.Module):
        owner = uncompiled(model)
    if not isinstance(name, str):
        return type(function).__name__
    if owner is None or isinstance(owner, ModuleType):  # A built-in's owner is its module.
        return name
    return f"{owner.__name__ if isinstance(owner, type) else type(owner).__name__}.{name}"


def _checked_keywords(kwargs: object) -> _Kwargs:
    keywords = {} if kwargs is None else kwargs
    if isinstance(keywords, Mapping):
        keywords = entries_of(keywords, option="kwargs")
        if all(type(name) is str for name in keywords):
            return keywords
    raise InputError(
        f"kwargs={shown(kwargs)} has no names of parameters",
        why="kwargs maps the names of forward's parameters to arguments",
        fix="write kwargs={'mask': mask}, and give positional arguments in input_to_model",
    )


class _Binding:
    """A model and the inputs passed for it, while they are bound to its parameters."""

    def __init__(self, model: Callable[..., object], inputs: object, keywords: _Kwargs) -> None:
        self.model = model
        self.inputs = inputs
        self.keywords = keywords
        self.entry = entry_point(model)
        self.signature = signature_of(self.entry)

    def spread(self, value: object) -> _Call:
        """Return the arguments for one `input_to_model`, by the rules of `bind_inputs`."""
        if isinstance(value, torch.Tensor | PackedSequence | torch.Size):
            return (value,), {}
        if isinstance(value, tuple | list):
            names = getattr(value, "_fields", None)
            keywords = keywords_in(self.signature) if names and self.signature else set()
            if names and keywords.issuperset(names):
                return (), dict(zip(names, value, strict=True))
            if names is None or (self.misfit((value,), {}) and not self.misfit(tuple(value), {})):
                return tuple(value), {}
            return (value,), {}
        if isinstance(value, Mapping) and self._names_parameters(value):
            return (), entries_of(value, option="input_to_model")
        return (value,), {}

    def _names_parameters(self, mapping: Mapping[object, object]) -> bool:
        """Whether a mapping's keys are names of parameters, by the rules of `bind_inputs`."""
        signature = self.signature
        names = names_of(mapping, option="input_to_model")
        if signature is None or not all(type(key) is str for key in names):
            return False
        if not names:
            return not required_in(signature)
        keywords = keywords_in(signature)
        extra = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
        )
        if extra and not positional_in(signature):
            return True
        bases = type(mapping).__mro__
        if extra or any(base.__module__.startswith("transformers.") for base in bases):
            return not keywords.isdisjoint(names)
        return keywords.issuperset(names)

    def misfit(self, args: _Args, named: _Kwargs) -> str:
        """Return Python's reason why the arguments do not fit the model; empty if they do."""
        faults = []
        # The decorated function has the signature that its author wrote. If the arguments do not
        # fit it, the decorator itself may still accept them.
        for follow_wrapped in (True, False):
            signature = signature_of(self.entry, follow_wrapped=follow_wrapped)
            try:
                if signature is not None:
                    signature.bind(*args, **{**named, **self.keywords})
            except TypeError as error:
                faults.append(str(error))
            else:
                return ""
        return faults[0]

    def checked(self, args: _Args, named: _Kwargs) -> _Call:
        """Return the arguments merged with the keywords.

        Raises:
            InputError: They do not fit the parameters of the model.
        """
        kwargs = {**named, **self.keywords}
        twice = next((name for name in self.keywords if name in named), None)
        # The text is Python's own.
        fault = f"multiple values for argument {twice!r}" if twice else self.misfit(args, named)
        if self.signature and fault:
            raise argument_error(
                callee_name(self.model), self.signature, fault, self.inputs, args, kwargs
            )
        return args, kwargs

    def offered(self) -> _Call:
        """Return the arguments for a call without inputs: the model's example inputs, or none.

        Raises:
            InputError: The model needs inputs and offers none that fit.
        """
        signature = self.signature
        unfit = None
        takes_some = signature is None or bool(signature.parameters)
        if takes_some and (not self.keywords or self.misfit((), {})):
            for attribute in _EXAMPLES:
                example = self._example(attribute)
                if example is None:
                    continue
                args, keywords = self.spread(example)
                # `dummy_inputs` of transformers are keyword arguments: a mapping that would be
                # one positional argument does not fit.
                foreign = attribute == "dummy_inputs" and isinstance(example, Mapping) and args
                if not (foreign or keywords.keys() & self.keywords or self.misfit(args, keywords)):
                    return args, {**keywords, **self.keywords}
                unfit = unfit or attribute
        if signature and not self.keywords and self.misfit((), {}):
            offers = f"its {unfit} does not fit" if unfit else f"the model has no {_EITHER}"
            raise nothing_given_error(callee_name(self.model), signature, why=offers)
        return self.checked((), {})

    def _example(self, attribute: str) -> object:
        try:
            example = getattr(self.model, attribute, None)
            if callable(example) and not isinstance(example, torch.Tensor | Mapping):
                example = example()
        except Exception as error:
            raise InputError(
                f"{type(self.model).__name__}.{attribute} raised when its inputs were read",
                why=error_text(error),
                fix="give input_to_model",
            ) from error
        device = device_of(self.model)
        return example if device is None else map_tensors(lambda tensor: tensor.to(device), example)
