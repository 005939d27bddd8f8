"""Feeds damaged files to every reader: `python -m tests.fuzz --minutes 20 --seed 1`.

Whole files of each form are damaged in the ways that files are damaged, and in those that
somebody would choose: bytes changed, cut, repeated and joined, lengths that claim too much, fields
nested in each other, and for event files and records all that with the right checksums. A reader
gives a graph or one `ArgumentError`, in a time and a memory that fit the size of the file.
"""

import argparse
import contextlib
import copy
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

import tbscope
from tbscope.formats.compressed import RECORD_FIELD, record_of
from tbscope.formats.json import compact_json, graph_to_json
from tbscope.graphdef.wire import delimited, varint
from tbscope.sources.weights import from_weights
from tests.build import chain
from tests.full_graph import full
from tests.log_files import graph_def, metadata, record, tagged

MOST_SECONDS = 10.0
MOST_TEXT = 5000
SEEDS = range(32)
"""The seeds of the part that runs with the tests."""

Make = Callable[[random.Random], bytes]


def damage(data: bytes, rng: random.Random) -> bytes:
    """Give bytes that are damaged in one to four ways."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 64, 500)))
        ways = (
            lambda d, at=at, end=end: d[:at] + rng.randbytes(end - at) + d[end:],
            lambda d, at=at, end=end: (
                d[:at] + bytes(b ^ 1 << rng.randrange(8) for b in d[at:end]) + d[end:]
            ),
            lambda d, at=at: d[:at],
            lambda d, at=at, end=end: d[:at] + d[end:],
            lambda d, at=at, end=end: d[:end] + d[at:end] * rng.choice((1, 2, 50)) + d[end:],
            lambda d, at=at: d[:at] + varint(rng.getrandbits(rng.choice((7, 31, 40, 64)))) + d[at:],
            lambda d, at=at: d[:at] + rng.choice(TOKENS) + d[at:],
            lambda d, at=at, end=end: d[:at] + rng.choice(TOKENS) + d[end:],
            lambda d, at=at: d[:at] + d[: rng.randrange(len(d) + 1)],
        )
        data = rng.choice(ways)(data)
    return data


TOKENS = [
    *(b"\xff", b"\x00", b"\n", b"/", b":", b"^", b"[", b"]", b"{", b"}", b'"', b"%", b".1", b"\\"),
    *(b"\xed\xa0\x80", "é".encode(), b"a[a]/" * 200, b"node {" * 50, b"[[" * 3000, b"1e999"),
    *(b"999999999999", b"-1", b"null", b"true", b'{"list":[', b'{"int":"0x1"}', b"NaN"),
    *(b"prim::GetAttr", b"prim::Constant", b"prim::DictConstruct", b"IO Node", b"Const"),
    *(b"__function_library__", b"Output", b"NoOp", b"class", b"scope", b"{ value : 1}"),
]


def _events(rng: random.Random) -> list[bytes]:
    drawn = tbscope.to_graph_def(chain(2)).SerializeToString()
    keras = json.dumps({"config": {"name": "m", "layers": [{"config": {"name": "a"}}]}}).encode()
    event = b"\x09" + bytes(8) + b"\x22" + delimited(drawn)
    ours = varint(RECORD_FIELD << 3 | 2) + delimited(record_of(chain(rng.randrange(3))))
    return [
        event,
        event + ours,
        tagged("t ", "graph_run_metadata_graph", metadata(_nested())).SerializeToString() + ours,
        tagged("p", "graph_run_metadata", metadata(_nested(), x=3)).SerializeToString(),
        tagged("k", "graph_keras_model", keras).SerializeToString(),
        b"\x42" + delimited(b"\x0a\x01p\x12" + delimited(metadata(None, y=7))),
    ]


def _nested():
    message = graph_def(
        *("x: Placeholder()", "y: f(x)", "n/[a]/Linear[fc]/z: prim::Constant()", "o: Output(y)"),
        *("n/w/w.1: prim::GetAttr(gone)", "n/l: prim::ListConstruct(n/w/w.1, y:1, l)"),
        *("output/output.1: IO Node(n/l)", "m: Merge(o, y, ^q)", "q: Next(m)"),
        shapes={"x": (1, -1, 0)},
    )
    function = message.library.function.add()
    function.signature.name = "f"
    function.signature.input_arg.add(name="a")
    function.signature.output_arg.add(name="r")
    function.ret["r"] = "g:out:0"
    function.node_def.extend(graph_def("g: f(a)", "h: Relu(g:out:0)").node)
    message.node[2].attr["attr"].s = b"{ value : 1}"
    return message


def _log(rng: random.Random) -> bytes:
    events = _events(rng)
    if rng.random() < 0.6:
        # With the right checksums: the damage is in what was written.
        place = rng.randrange(len(events))
        events[place] = damage(events[place], rng)
        return b"".join(map(record, events))
    return damage(b"".join(map(record, events)), rng)


def _record(rng: random.Random) -> bytes:
    text = compact_json(_full(rng))
    if rng.random() < 0.85:
        text = damage(text, rng)
    if rng.random() < 0.05:
        text += b" " * rng.choice((10**6, 10**8))
    packed = zlib.compress(text, 1)
    if rng.random() < 0.3:
        packed = damage(packed, rng)
    return record(_events(rng)[0] + varint(RECORD_FIELD << 3 | 2) + delimited(packed))


def _full(rng: random.Random):
    return full() if rng.random() < 0.7 else chain(rng.randrange(4))


def _json(rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return damage(graph_to_json(_full(rng)).encode(), rng)
    data = json.loads(graph_to_json(_full(rng)))
    for _ in range(rng.choice((1, 1, 2, 5))):
        _change(data, rng)
    return json.dumps(data).encode()


ODD = [
    *(None, True, -1, 0, 1, 3, 10**6, 2**63, 10**30, 0.5, "", "x", [], {}, [0], [[]], [-1]),
    *({"list": []}, {"tuple": [[0]]}, {"dict": [[1, 2]]}, {"int": "0x9"}, {"is": [1], "name": "a"}),
    *("op", "module", "input", "\ud800", "a" * 5000, [0] * 500, {"constant": "c"}, {"body": {}}),
]


def _change(data, rng: random.Random) -> None:
    place = data
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
            place = place[key]
            continue
        if rng.random() < 0.2:
            del place[key]
        elif rng.random() < 0.3 and isinstance(place, dict):
            place[rng.choice(list(data))] = json.loads(json.dumps(place[key]))
        else:
            # A copy: a later change of it is no change of the next file.
            place[key] = copy.deepcopy(rng.choice(ODD))
        return


def _pb(rng: random.Random) -> bytes:
    from google.protobuf import text_format

    kind = rng.random()
    if kind < 0.4:
        message = _random(rng)
    else:
        message = _nested() if kind < 0.8 else tbscope.to_graph_def(chain(2))
    for _ in range(rng.choice((0, 0, 1, 3, 10))):
        _tangle(message, rng)
    if rng.random() < 0.4:
        data = text_format.MessageToString(message).encode()
    else:
        data = message.SerializeToString()
    return data if rng.random() < 0.3 else damage(data, rng)


OPS = [
    *("Placeholder", "Const", "IO Node", "Output", "NoOp", "Relu", "Merge", "VarHandleOp"),
    *("prim::GetAttr", "prim::Constant", "prim::TupleConstruct", "f0", "f1", "f2", "aten::add"),
]


def _random(rng: random.Random):
    """Give a GraphDef of nodes that read each other without a plan, and functions that do so."""
    message = graph_def(*_nodes(rng, rng.choice((5, 20, 100))))
    for number in range(3):
        function = message.library.function.add()
        function.signature.name = f"f{number}"
        function.signature.input_arg.add(name="n0")
        function.signature.output_arg.add(name="r")
        function.ret["r"] = f"n{rng.randrange(6)}:out:0"
        function.node_def.extend(graph_def(*_nodes(rng, rng.choice((2, 5)))).node)
    return message


def _nodes(rng: random.Random, count: int) -> list[str]:
    # One op more often than all others: what is harmless once may not be so in a chain.
    often = rng.choice([*OPS, *["prim::ListConstruct"] * 4])
    boxes = rng.choice([[""], ["", "", "", "a/", "N/Linear[fc]/", "a/b/c/"]])
    steps, others = rng.choice([(1,), (1, 1, 2, -3)]), rng.choice((0.0, 0.1, 0.4))
    arity = rng.choice([(2,), (1, 2), (0, 1, 2, 3)])
    nodes = []
    for number in range(count):
        op = rng.choice(OPS) if rng.random() < others or number == count - 1 else often
        # Mostly the one before, and twice.
        read = [max(number - rng.choice(steps), 0) for _ in range(rng.choice(arity))]
        inputs = ", ".join(f"n{one}{rng.choice(('', '', ':1', ':out:0'))}" for one in read)
        nodes.append(f"{rng.choice(boxes)}n{number}: {op}({inputs})")
    return nodes


def _tangle(message, rng: random.Random) -> None:
    """Join nodes that have nothing to do with each other, and rename one."""
    node, other = rng.choice(message.node), rng.choice(message.node)
    words = [other.name, f"{other.name}:{rng.choice((0, 1, 7, 10**8))}", f"^{other.name}", "", "^"]
    node.input.append(rng.choice(words))
    if rng.random() < 0.3:
        node.op = rng.choice([other.op, *(token.decode("latin-1") for token in TOKENS)])
    if rng.random() < 0.2:
        node.name = rng.choice([other.name, f"{other.name}/{node.name}", "/", "", "a//b", "^a:0"])
    if rng.random() < 0.2:
        key = rng.choice(["scope", "class", "name", "kernels", "source", "attr", "flops", "f"])
        node.attr[key].s = rng.choice([*TOKENS, b"Net/Linear[fc]", b"a/b.7", b"x.py:3 in f"])


def _zip(whole: bytes, rng: random.Random) -> bytes:
    """Give a zip file with one entry damaged, or damaged as a whole."""
    if rng.random() < 0.3:
        return damage(whole, rng)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(made, "w") as new:
        names = old.namelist()
        target = rng.choice(names)
        for name in names:
            data = old.read(name)
            changed = _damaged_entry(name, data, rng) if name == target else data
            # Without the time of day: a seed gives the same file whenever it is tried.
            new.writestr(zipfile.ZipInfo(name), changed)
    return made.getvalue()


def _damaged_entry(name: str, data: bytes, rng: random.Random) -> bytes:
    if name.endswith(".json") and rng.random() < 0.7:
        try:
            plain = json.loads(data)
            _change(plain, rng)
            return json.dumps(plain).encode()
        except ValueError:
            pass
    return damage(data, rng)


_MADE: dict[str, bytes] = {}


def _program(rng: random.Random) -> bytes:
    return _zip(_pt2(), rng)


def _script(rng: random.Random) -> bytes:
    # As a whole only: code and pickles with checksums that fit are trusted.
    whole = _scripts()[rng.randrange(2)]
    return whole if rng.random() < 0.1 else damage(whole, rng)


class Steps(torch.nn.Module):
    """Has a branch that a tensor decides, a loop, a part, and a list."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)

    def forward(self, x, count: int):
        found: list[torch.Tensor] = []
        for _ in range(count):
            x = torch.relu(self.fc(x)) if bool(x.sum() > 0) else x - 1
            found.append(x)
        return torch.stack(found), {"last": x}


def _scripts() -> list[bytes]:
    """Give the files of a traced module, and of a scripted one with a branch and a loop."""
    if "traced" not in _MADE:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        scripts = {
            "traced": torch.jit.trace(model.eval(), torch.ones(1, 2)),
            "scripted": torch.jit.script(Steps()),
        }
        for name, script in scripts.items():
            made = io.BytesIO()
            torch.jit.save(script, made)
            _MADE[name] = made.getvalue()
    return [_MADE["traced"], _MADE["scripted"]]


def _pt2() -> bytes:
    if "pt2" not in _MADE:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        made = io.BytesIO()
        torch.export.save(torch.export.export(model, (torch.ones(1, 2),)), made)
        _MADE["pt2"] = made.getvalue()
    return _MADE["pt2"]


def _weights(rng: random.Random) -> bytes:
    """Give a file of torch.save, an older one, or one of safetensors."""
    if "weights" not in _MADE:
        state = Steps().state_dict()
        for name, is_zip in (("weights", True), ("old weights", False)):
            made = io.BytesIO()
            torch.save(state, made, _use_new_zipfile_serialization=is_zip)
            _MADE[name] = made.getvalue()
    form = rng.choice(("zip", "old", "header"))
    if form == "zip":
        return _zip(_MADE["weights"], rng)
    if form == "old":
        return damage(_MADE["old weights"], rng)
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    header = _damaged_entry(".json", json.dumps({"fc.weight": entry, "b": entry}).encode(), rng)
    return len(header).to_bytes(8, "little") + header + bytes(16)


def _onnx(rng: random.Random) -> bytes:
    if "onnx" not in _MADE:
        from tests.onnx_build import FLOAT, info, model_of, node

        model = model_of(
            [
                node("Relu", ["x"], ["y"], levels=[("", "nets.Net"), ("fc", "Linear")]),
                node("Add", ["y", "y"], ["z"]),
            ],
            [info("x", FLOAT, [2])],
            [info("z", FLOAT, [2])],
        )
        _MADE["onnx"] = model.SerializeToString()
    return _MADE["onnx"] if rng.random() < 0.1 else damage(_MADE["onnx"], rng)


FORMS: dict[str, tuple[str, Make]] = {
    "events": ("tfevents", _log),
    "record": ("tfevents", _record),
    "json": ("graph.json", _json),
    "graphdef": ("graph.pb", _pb),
    "pt2": ("model.pt2", _program),
    "script": ("model.pt", _script),
    "weights": ("model.pt", _weights),
    "onnx": ("model.onnx", _onnx),
}
"""For each form the name of its file, and what makes a damaged one."""

READERS: dict[str, Callable[[str], object]] = {
    "events": tbscope.read_log,
    "record": tbscope.read_log,
    "json": tbscope.load,
    "graphdef": tbscope.from_graph_def,
    "pt2": tbscope.from_export,
    "script": tbscope.from_torchscript,
    "weights": from_weights,
    "onnx": tbscope.from_onnx,
}


class TooSlowError(BaseException):
    """A reader computes for too long; no reader catches it."""


@contextlib.contextmanager
def _in_time():
    """Raise in the reader where it has computed for too long."""

    def stop(*_):
        raise TooSlowError(f"it took more than {MOST_SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(form: str, path: Path) -> tuple[str, str]:
    """Read a damaged file; give what came of it in a word, and what is wrong, if anything is."""
    told, fault = "a graph", ""
    try:
        with _in_time():
            read = READERS[form](str(path))
            for graph in [one.graph for one in read] if isinstance(read, list) else [read]:
                graph.verify()
                str(graph)
    except tbscope.ArgumentError as error:
        told, fault = "refused", _fault_of(error)
    except BaseException:  # noqa: BLE001  Anything else is what is looked for.
        told, fault = "raised", traceback.format_exc()
    return told, fault


def _fault_of(error: tbscope.ArgumentError) -> str:
    text = str(error)
    text.encode()
    if not (error.what and error.why and error.fix):
        return f"not all three parts: {text}"
    return f"{len(text)} characters" if len(text) > MOST_TEXT else ""


def fuzz_one(form: str, seed: int, folder: Path) -> tuple[str, str]:
    """Make the damaged file of a seed and read it: see `outcome`."""
    name, make = FORMS[form]
    path = folder / name
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        path.write_bytes(make(random.Random(f"{form} {seed}")))
        return outcome(form, path)


def main() -> None:
    """Run for some minutes; print what came of it, and each fault with its form and seed."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--minutes", type=float, default=1)
    words.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    words.add_argument("--form", choices=FORMS, action="append")
    words.add_argument("--memory", type=float, default=4, help="the most GiB that it may take")
    given = words.parse_args()
    most = int(given.memory * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    forms = given.form or list(FORMS)
    counts: Counter[tuple[str, str]] = Counter()
    faults = 0
    seed, until = given.seed, time.monotonic() + given.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until:
            for form in forms:
                told, fault = fuzz_one(form, seed, Path(folder))
                counts[form, told] += 1
                if fault:
                    faults += 1
                    print(f"--form {form} --seed {seed}: {fault}", flush=True)
            seed += 1
    for (form, told), count in sorted(counts.items()):
        print(f"{form}: {told} {count:,} times")
    print(f"{faults} faults; seeds {given.seed} to {seed - 1}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
