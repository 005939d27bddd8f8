"""Compares what tbscope says of a model with what the oracles say."""

import copy
import io
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

import tbscope
from tests.zoo import faults
from tests.zoo.arithmetic import counted_flops
from tests.zoo.counts import wrong_counts
from tests.zoo.dependencies import idle_parameters, moved_outputs, reaching
from tests.zoo.fingerprints import Fingerprint, fingerprint
from tests.zoo.oracles import bind, observe, seeded

T = TypeVar("T")

__all__ = ["ASPECTS", "Verdict", "check", "judge"]

ASPECTS = (
    "drawn",
    "quiet",
    "calls",
    "scopes",
    "operations",
    "edges",
    "shapes",
    "flops",
    "counted",
    "unchanged",
    "converted",
)
"""What is judged; each is right, or wrong with reasons."""


@dataclass
class Verdict:
    """What is wrong with the graph of one model in one mode; nothing, where all is right.

    Attributes:
        wrong: For each aspect that is wrong, the reasons.
        nodes: Nodes of the graph.
        calls: Calls of the graph.
        trace_ms: What the trace took, in milliseconds.
        forward_ms: What the model alone took, in milliseconds.
        beyond: Parameters that reach an output in the graph and not in autograd's.
        doubtful: Those of them whose values move no output either.
        unproved: What an oracle could not tell.
    """

    wrong: dict[str, list[str]] = field(default_factory=dict)
    nodes: int = 0
    calls: int = 0
    trace_ms: float = 0.0
    forward_ms: float = 0.0
    beyond: int = 0
    doubtful: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def add(self, aspect: str, reasons: Iterator[str]) -> None:
        """Note the first reasons why an aspect is wrong."""
        found = list(reasons)
        if found:
            shown = found[:5]
            if len(found) > len(shown):
                shown.append(f"and {len(found) - len(shown)} more")
            self.wrong.setdefault(aspect, []).extend(shown)


def check(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool,
) -> Verdict:
    """Trace a model and compare the graph with the oracles.

    Args:
        model: What is traced; anything that can be called.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        training: The mode.
    """
    kwargs = dict(kwargs or {})
    verdict = Verdict()
    graph = _trace(verdict, model, args, kwargs, training)
    if graph is not None:
        judge(graph, model, args, kwargs, training=training, verdict=verdict)
        verdict.add("converted", _differs_again(graph, _twin(model), args, kwargs, training))
    return verdict


def judge(
    graph: tbscope.Graph,
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    training: bool,
    verdict: Verdict | None = None,
) -> Verdict:
    """Compare a graph with the oracles; add to a verdict what is wrong."""
    verdict = verdict or Verdict()
    verdict.nodes, verdict.calls = len(graph.nodes), len(graph.calls)
    facts = observe(_twin(model), args, kwargs, training=training)
    verdict.add("calls", faults.wrong_calls(graph, facts))
    if len(graph.calls) == len(facts.calls):
        verdict.add("scopes", faults.wrong_scopes(graph, facts, model))
        verdict.add("operations", faults.wrong_operations(graph, facts))
        verdict.add("shapes", faults.wrong_results(graph, facts))
    verdict.add("shapes", faults.wrong_values(graph))
    verdict.add("shapes", faults.wrong_outputs(graph, facts))
    verdict.add("edges", faults.dangling_edges(graph))
    verdict.add("edges", faults.wrong_inputs(graph, bind(model, args, kwargs)))
    run = (args, kwargs)
    dependencies = _proved(verdict, lambda: reaching(_twin(model), *run, training=training))
    if dependencies is not None:
        verdict.add("edges", faults.lost_edges(graph, dependencies))
        beyond = faults.parameters_beyond(graph, dependencies)
        verdict.beyond = len(beyond)
        some = beyond[:: max(len(beyond) // 8, 1)]
        verdict.doubtful = idle_parameters(_twin(model), *run, some, training=training)
    counted = _proved(verdict, lambda: counted_flops(_twin(model), *run, training=training))
    if counted is not None:
        verdict.add("flops", faults.wrong_flops(graph, counted))
    moved = _proved(verdict, lambda: moved_outputs(_twin(model), *run, training=training))
    if moved:
        verdict.add("edges", faults.lost_reads(graph, moved))
    verdict.add("converted", faults.wrong_conversion(graph))
    if isinstance(model, torch.nn.Module) and "converted" not in verdict.wrong:
        # What cannot be converted has no cards.
        verdict.add("counted", wrong_counts(graph, model))
    return verdict


def _proved(verdict: Verdict, oracle: Callable[[], T]) -> T | None:
    """Ask an oracle; note it where it cannot tell (a model need not run with gradients)."""
    try:
        return oracle()
    except Exception as error:  # noqa: BLE001
        verdict.unproved.append(f"{type(error).__name__}: {error}"[:200])
        return None


def _differs_again(
    graph: tbscope.Graph, twin: Any, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
) -> Iterator[str]:
    """Trace a copy of the model and compare the bytes."""
    with seeded(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = _traced(twin, args, kwargs, training)
    for style in ("tf", "torch"):
        one, two = (
            tbscope.to_graph_def(each, style=style).SerializeToString(deterministic=True)
            for each in (graph, again)
        )
        if one != two:
            yield f"traced twice, the bytes in style {style} differ"


def _traced(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
) -> tbscope.Graph:
    """Trace, always from this line: the call of a root has its place in the caller's code."""
    given = {"input_to_model": args} if args or not kwargs else {}
    return tbscope.trace(model, **given, kwargs=kwargs, training=training)


def _trace(
    verdict: Verdict, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
) -> tbscope.Graph | None:
    """Trace; note what the model is afterwards, and what was warned."""
    with seeded(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = fingerprint(model, (args, kwargs))
        own: list[str] = []
        printed = io.StringIO()
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(printed):
            warnings.simplefilter("always")
            begin = time.perf_counter()
            try:
                graph = _traced(model, args, kwargs, training)
            except Exception as error:  # noqa: BLE001  (Any error is what is looked for.)
                verdict.add("drawn", iter([f"{type(error).__name__}: {error}"]))
                graph = None
            verdict.trace_ms = (time.perf_counter() - begin) * 1000
            own = [*(str(w.message) for w in caught), *printed.getvalue().splitlines()]
        after = fingerprint(model, (args, kwargs))
    plain = _twin(model)
    said = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        redirect_stdout(said),
        torch.no_grad(),
        seeded(),
    ):
        warnings.simplefilter("always")
        first = fingerprint(plain, (args, kwargs))
        begin = time.perf_counter()
        _plainly(plain, args, kwargs, training)
        verdict.forward_ms = (time.perf_counter() - begin) * 1000
        usual = Counter([*(str(w.message) for w in caught), *said.getvalue().splitlines()])
        may = _written(first, fingerprint(plain, (args, kwargs)))
    verdict.add(
        "unchanged",
        (text for text in before.differences(after) if text.split(":")[0] not in may),
    )
    verdict.add("quiet", (f"said: {text:.100}" for text in (Counter(own) - usual)))
    return graph


def _plainly(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> Any:
    """Call a model in a mode with nothing watching; leave what it writes."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    flags = [module.training for module in modules]
    for module in modules:
        module.training = training
    try:
        return model(*args, **kwargs)
    finally:
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag


def _twin(model: Any) -> Any:
    """Give a copy for one run of an oracle, so that no run sees what another one wrote."""
    try:
        return copy.deepcopy(model)
    except Exception:  # noqa: BLE001  (What cannot be copied runs itself.)
        return model


def _written(before: Fingerprint, after: Fingerprint) -> set[str]:
    """Give the version counters that a model moves by itself in a plain call."""
    return {
        key
        for key in after.facts
        if key.startswith("version of ") and after.facts[key] != before.facts.get(key)
    }
