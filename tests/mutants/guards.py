"""Which tests guard which file: those that notice a slip in it, the quickest first.

Every file stands here that decides something of what a user sees. Tests of the page in a
browser guard none of them.
"""

__all__ = ["GUARDS", "guards_of"]

_TRACE = ("trace", "trace_dataflow", "trace_scopes", "trace_errors", "record", "by_hand")
_KEPT = ("preserve", "trace_fake", "trace_inputs")
_FIGURES = ("totals", "flops", "summary", "overlays")
_DRAWN = ("build", "golden")

_BY_FOLDER: dict[str, dict[str, tuple[str, ...]]] = {
    "tbscope": {
        "options": ("options", "run_names", "pipeline", "cli_errors"),
    },
    "tbscope/cli": {
        "_options": ("options", "cli"),
        "_words": ("cli_errors",),
        "_export": ("cli", "cli_errors"),
        "_log": ("cli", "cli_errors"),
    },
    "tbscope/ir": {
        "scopes": ("scopes", "text", "golden"),
        "nodes": ("graph", "text", "levels", "plumbing"),
        "graph": ("graph", "text", "golden"),
        "invariants": ("invariants",),
    },
    "tbscope/figures": {
        "costs": ("totals", "flops", "summary"),
        "totals": ("totals", "flops", "summary"),
        "notes": ("notes", "trace", "record"),
    },
    "tbscope/writing": {
        "steps": ("steps", "writer", "many_writers", "tags", "tag_kinds", "run_names"),
        "tags": ("tags", "tag_kinds", "run_names", "many_writers"),
        "sinks": ("sinks", "writer", "many_writers", "run_names"),
        "records": ("records", "sinks"),
    },
    "tbscope/sources/eager/record": {
        "recorder": _TRACE,
        "values": ("trace_dataflow", "trace", "record"),
        "scope_stack": ("trace_scopes", "by_hand", "record", "trace_errors"),
        "bodies": ("levels", "trace_dataflow"),
    },
    "tbscope/sources/eager/watch": {
        "modes": _TRACE,
    },
    "tbscope/sources/eager/keep": {
        "preserve": _KEPT,
        "kept_tensors": _KEPT,
        "kept_objects": _KEPT,
        "kept_process": _KEPT,
    },
    "tbscope/sources/torch": {
        "operations": (*_TRACE, "notes"),
        "storage": ("trace_dataflow", "trace"),
        "registry": ("trace_scopes", "trace_dataflow", "trace"),
    },
    "tbscope/passes": {
        "bypass": ("plumbing", "golden"),
        "dead": ("dead", "pipeline"),
        "hiding": ("plumbing", "pipeline"),
        "kernels": ("levels", "pipeline"),
        "leaves": ("leaves", "cards", "golden"),
        "levels": ("levels", "pipeline"),
        "modules": ("levels", "pipeline"),
        "patterns": ("plumbing",),
        "plumbing": ("plumbing", "golden"),
    },
    "tbscope/drawing": {
        "naming": ("naming", *_DRAWN),
        "cards": ("cards", "leaves", "flops", "golden"),
        "figures": ("figures", "overlays"),
        "layout": ("layout", "chunks", "templates", *_DRAWN),
        "chunks": ("chunks", *_DRAWN),
        "places": ("places", "chunks"),
        "build": _DRAWN,
        "templates": ("templates", *_DRAWN),
    },
    "tbscope/page": {
        "siblings": ("chunks", "series", *_DRAWN),
        "flow": ("chunks", *_DRAWN),
        "structures": ("templates", *_DRAWN),
    },
    "tbscope/graphdef": {
        "wire": (*_DRAWN, "records"),
    },
    "tbscope/rules": {
        "attributes": ("linter",),
        "inputs": ("linter",),
        "levels": ("linter",),
        "linter": ("linter",),
        "names": ("linter",),
        "ops": ("linter",),
        "reading": ("linter",),
    },
}

GUARDS: dict[str, tuple[str, ...]] = {
    f"{folder}/{name}.py": guards
    for folder, files in _BY_FOLDER.items()
    for name, guards in files.items()
}
"""For each file, from the root of the repository, the tests that guard it."""


def guards_of(path: str) -> list[str]:
    """Give the test files that guard a file, and the file itself for its doctests."""
    return [*(f"tests/test_{name}.py" for name in GUARDS[path]), path]
