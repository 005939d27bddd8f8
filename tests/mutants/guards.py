"""Which tests guard which file: those that notice a slip in it, the quickest first.

Every file stands here that decides something of what a user sees. Tests of the page in a
browser guard none of them.
"""

__all__ = ["GUARDS", "guards_of"]

_KEPT = ("put_back", "preserve")
_RECORDED = ("trace_dataflow", "late_scopes", "put_back", "by_hand", "trace_errors", "record")
_FOLDED = ("readers", "plumbing", "golden")
_COMPARED = ("diff_calls", "diff", "diff_union", "check", "diff_laws", "diff_pairs", "cli_diff")
_PICTURED = ("picture", "cut", "html")
_MERGED = ("merge_ranks", "rank_figures", "rank_notes", "posts")
_GATHERED = ("posts", "gather", "merge_ranks", "bad_values")
_OVERLAID = ("overlays", "rank_figures")
_RANKED = ("rank_operations", "rank_notes", "rank_figures", "ranks_record")
_SCRIPTED = ("script_lists", "from_torchscript", "script_files")
_COMPILED = ("compile_graphs", "compile_backend", "compiled_state")
_STEPPED = ("optimizers", "backward", "gradient_sizes", "watching")
_ASKED = ("cli_queries", "cli_graphs", "cli_logs")

_BY_FOLDER: dict[str, dict[str, tuple[str, ...]]] = {
    "tbscope": {
        "files": ("files", "saving", "check"),
        "installing": ("installing", "graphs_in_torchs_place", "options"),
        "option": ("options", "run_names", "bad_values"),
        "options": ("options", "placing", "run_names", "tags", "pipeline", "cli_errors"),
    },
    "tbscope/cli": {
        "_check": ("cli_diff", "cli_errors"),
        "_diff": ("cli_diff", "cli_errors"),
        "_export": ("cli", "cli_errors"),
        "_find": _ASKED,
        "_lint": ("cli_lint",),
        "_log": ("cli", "cli_errors"),
        "_ls": ("cli_logs",),
        "_parameters": ("cli", "options", "cli_errors", "cli_inputs"),
        "_results": ("cli_commands", "cli_queries", "cli_forms", "cli"),
        "_run": ("cli_run",),
        "_running": ("cli", "cli_inputs", "cli_errors", "cli_graphs"),
        "_show": ("cli_queries", "cli", "cli_graphs"),
        "_stats": ("cli_queries",),
        "_target": ("cli", "cli_inputs", "cli_errors", "cli_logs", "cli_hub", "cli_queries"),
        "_view": ("cli_view", "cli_errors"),
        "_words": ("cli_errors", "cli_commands"),
    },
    "tbscope/comparing": {
        "alignment": ("alignment", *_COMPARED),
        **dict.fromkeys(
            (
                *("changes", "check", "difference", "matching"),
                *("outline", "pairs", "pins", "reading", "text", "union"),
            ),
            _COMPARED,
        ),
    },
    "tbscope/integrations": {
        "callback": ("callback", "transformers_callback", "lightning_callback"),
        "lightning": ("lightning_callback",),
        "transformers": ("transformers_callback",),
    },
    "tbscope/overlays": {"make": _OVERLAID},
    "tbscope/ranks": {
        **dict.fromkeys(("alike", "copies", "join", "merge", "shares"), _MERGED),
        **dict.fromkeys(("asked", "gather", "posts"), _GATHERED),
    },
    "tbscope/saving": {
        "cut": ("cut", "dot", "folds"),
        "dot": ("dot", "saving"),
        "html": _PICTURED,
        "mermaid": ("mermaid", "saving"),
        "picture": _PICTURED,
        "repeats": ("folds", "dot", "levels_of_pictures"),
        "save": ("saving", "cli_forms"),
    },
    "tbscope/sources/compiled": dict.fromkeys(
        ("capture", "compiling", "graphs", "names", "reasons", "results"),
        _COMPILED,
    ),
    "tbscope/sources/torchscript": dict.fromkeys(
        (
            *("archive", "borders", "control", "held", "kinds", "numbers"),
            *("operators", "script_reader", "scripts", "types", "walk"),
        ),
        _SCRIPTED,
    ),
    "tbscope/ir": {
        "editing": ("editing", "leaves", "readers", "kernels", "dead", "plumbing"),
        "graph": ("graph", "text", "kernels", "golden"),
        "guests": ("guests", "stands"),
        "invariants": ("invariants", "phases"),
        "modules": ("held_parts", "summary", "summary_of_nodes"),
        "nodes": ("graph", "text", "notes", "kernels", "levels", "golden"),
        "regions": ("regions", "levels"),
        "scopes": ("scopes", "climbs", "text", "regions", "held_parts"),
        "builder": ("builder", "trace_scopes", "trace"),
        "nests": ("nests_of_values", "graph"),
    },
    "tbscope/figures": {
        "columns": ("columns", "summary"),
        "costs": ("costs", "saved", "rank_figures", "summary"),
        "fold": ("fold", "fold_definitions", "summary"),
        "notes": ("notes", "record"),
        "summary": ("rows", "summary", "summary_of_nodes", "cli_queries"),
        "tables": ("summary", "cli_queries"),
        "units": ("columns", "summary"),
    },
    "tbscope/writing": {
        "records": ("records", "at_once", "sinks", "reading_order", "write_failures"),
        "sinks": ("sinks", "writer", "many_writers", "run_names", "reading_order"),
        "tags": ("steps", "tags", "tag_kinds", "run_names", "reading_order", "writer"),
    },
    "tbscope/sources/eager/record": {
        "backward": _STEPPED,
        "collectives": _RANKED,
        "optimizers": _STEPPED,
        "careful": ("watching", "watching_odd_steps"),
        "discovery": ("discovery", "trace_inputs", "held_parts", "handed_over", "dead", "wrappers"),
        "makers": ("backward", "backward_threads"),
        "operation": ("operation", "flops", "trace_dataflow", "levels", "kernels"),
        "recorder": (*_RECORDED, "operators", "trace_scopes", "trace", "notes", "flops"),
        "scope_stack": (
            "trace_scopes",
            "by_hand",
            "late_scopes",
            "unfinished",
            "summary",
            "record",
        ),
        "steps": (*_STEPPED, "trace_dataflow", "whole_steps"),
        "whereabouts": ("whereabouts", "runs", "record"),
        "values": ("trace_dataflow", "operators", "storage", "nests", "record"),
    },
    "tbscope/sources/eager/watch": {
        "modes": ("trace_dataflow", "trace_errors", "operators", "flops", "profile", "levels"),
        "module_calls": ("trace_scopes", "trace_errors", "record", "own_modes", "watching"),
        "threads": ("handed_over", "backward_threads", "threads"),
    },
    "tbscope/sources/eager/keep": {
        "kept_contents": _KEPT,
        "kept_process": _KEPT,
        "kept_tensors": _KEPT,
        "preserve": _KEPT,
    },
    "tbscope/sources/torch": {
        "operations": ("roles", "flops", "operation_arguments", "trace_dataflow", "notes", "trace"),
        "registry": ("trace_scopes", "late_scopes", "summary", "trace_dataflow"),
        "wrapping": ("storage", "trace_dataflow", "packed", "contents"),
    },
    "tbscope/passes": {
        "bypass": _FOLDED,
        "dead": ("readers", "dead", "pipeline"),
        "hiding": _FOLDED,
        "kernels": ("kernels", "levels"),
        "leaves": ("leaves", "cards", "golden"),
        "levels": ("overview", "levels", "pipeline"),
        "modules": ("readers", "dead", "levels"),
        "plumbing": _FOLDED,
        "ties": ("ties", "lent", "circles"),
    },
    "tbscope/drawing": {
        "build": ("build", "golden", "cards"),
        "cards": ("module_cards", "cards", "leaves", "flops", "golden"),
        "chunks": ("chunks", "golden"),
        "cuts": ("chunks", "golden"),
        "short_runs": ("short_runs", "chunks"),
        "stands": ("stands", "guests"),
        "figures": ("figure_sums", "figures", "overlays"),
        "layout": ("layout_heads", "layout", "chunks", "templates", "golden"),
        "naming": ("unique", "naming", "golden", "build"),
        "places": ("places", "overlays"),
        "templates": ("templates", "golden"),
    },
    "tbscope/page": {
        "crowds": ("crowds", "siblings", "both_models"),
        "edges": ("edges", "both_models", "hierarchy"),
        "flow": ("flow", "both_models", "chunks"),
        "library": ("library", "templates"),
        "ops": ("ops", "hierarchy"),
        "scenes": ("scenes", "both_models", "lint_edges"),
        "series": ("folding", "siblings", "both_models"),
        "siblings": ("siblings", "both_models", "chunks"),
        "structures": ("structures", "templates"),
    },
    "tbscope/graphdef": {
        "wire": ("entries", "build", "records"),
    },
    "tbscope/rules": dict.fromkeys(
        ("levels", "linter", "names", "nodes", "reading"),
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
