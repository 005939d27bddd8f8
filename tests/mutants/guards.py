"""Which tests guard which file: those that notice a slip in it, the quickest first.

Every file stands here that decides something of what a user sees. Tests of the page in a
browser guard none of them.
"""

__all__ = ["GUARDS", "guards_of"]

_KEPT = ("put_back", "preserve")
_RECORDED = ("trace_dataflow", "late_scopes", "put_back", "by_hand", "trace_errors", "record")
_FOLDED = ("readers", "plumbing", "golden")

_BY_FOLDER: dict[str, dict[str, tuple[str, ...]]] = {
    "tbscope/ir": {
        "editing": ("editing", "leaves", "readers", "kernels", "dead", "plumbing"),
        "graph": ("graph", "text", "kernels", "golden"),
        "invariants": ("invariants",),
        "nodes": ("graph", "text", "kernels", "levels"),
        "regions": ("regions", "totals", "notes"),
        "scopes": ("scopes", "text", "golden"),
    },
    "tbscope/figures": {
        "costs": ("costs", "totals", "summary"),
        "notes": ("notes", "record"),
        "totals": ("totals", "summary"),
    },
    "tbscope/writing": {
        "records": ("records", "sinks", "reading_order"),
        "sinks": ("sinks", "writer", "many_writers", "run_names", "reading_order"),
        "steps": ("tags", "tag_kinds", "run_names", "reading_order", "writer"),
        "tags": ("tags", "tag_kinds", "run_names", "writer"),
    },
    "tbscope/sources/eager/record": {
        "bodies": ("levels", "kernels", "flops"),
        "recorder": (*_RECORDED, "operators", "trace", "notes", "flops"),
        "scope_stack": ("trace_scopes", "by_hand", "late_scopes", "summary", "record"),
        "values": ("trace_dataflow", "storage", "nests", "record"),
    },
    "tbscope/sources/eager/watch": {
        "modes": ("trace_dataflow", "trace_errors", "flops", "profile", "levels"),
    },
    "tbscope/sources/eager/keep": {
        "kept_objects": _KEPT,
        "kept_process": _KEPT,
        "kept_tensors": _KEPT,
        "preserve": _KEPT,
    },
    "tbscope/sources/torch": {
        "operations": ("flops", "operation_arguments", "trace_dataflow", "notes", "trace"),
        "registry": ("trace_scopes", "late_scopes", "summary", "trace_dataflow"),
        "storage": ("storage", "trace_dataflow"),
    },
    "tbscope/passes": {
        "bypass": _FOLDED,
        "dead": ("readers", "dead", "pipeline"),
        "hiding": _FOLDED,
        "kernels": ("kernels", "levels"),
        "leaves": ("leaves", "golden"),
        "levels": ("levels", "pipeline"),
        "modules": ("readers", "levels"),
        "patterns": ("plumbing",),
        "plumbing": _FOLDED,
    },
    "tbscope/drawing": {
        "build": ("build", "golden", "cards"),
        "chunks": ("chunks", "golden"),
        "layout": ("layout", "chunks", "templates", "golden"),
        "naming": ("naming", "golden", "build"),
        "places": ("places", "overlays"),
        "templates": ("templates", "golden"),
    },
    "tbscope/page": {
        "flow": ("flow", "both_models", "chunks"),
        "siblings": ("siblings", "both_models", "chunks"),
        "structures": ("structures", "templates"),
    },
    "tbscope/graphdef": {
        "wire": ("entries", "build", "records"),
    },
    "tbscope/rules": dict.fromkeys(
        ("attributes", "inputs", "levels", "linter", "names", "ops", "reading"),
        ("linter", "lint_edges"),
    ),
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
