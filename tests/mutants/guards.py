"""Which tests guard which file: those that notice a slip in it, the quickest first.

Every file stands here that decides something of what a user sees. Tests of the page in a
browser guard none of them.
"""

__all__ = ["GUARDS", "guards_of"]

_KEPT = ("put_back", "preserve", "kept_contents", "own_modes")
_RECORDED = (
    "memory_law",
    "trace_dataflow",
    "late_scopes",
    "put_back",
    "by_hand",
    "trace_errors",
    "record",
)
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
        "utils/alignment": ("alignment", "onnx_alignment", *_COMPARED),
        "utils/files": ("files", "saving", "check"),
        "api/install": ("installing", "graphs_in_torchs_place", "options"),
        "utils/option": ("options", "run_names", "bad_values"),
        "options": (
            "options",
            "placing",
            "run_names",
            "tags",
            "pipeline",
            "cli_errors",
            "bad_values",
        ),
    },
    "tbscope/cli": {
        "commands/check": ("cli_diff", "cli_errors"),
        "commands/diff": ("cli_diff", "cli_errors"),
        "commands/export": ("cli", "cli_errors", "cli_forms"),
        "commands/find": _ASKED,
        "commands/lint": ("cli_lint",),
        "log_folder": ("cli", "cli_errors"),
        "commands/ls": ("cli_logs",),
        "parameters": ("cli", "options", "cli_errors", "cli_inputs"),
        "output": ("cli_commands", "cli_queries", "cli_forms", "cli"),
        "commands/run": ("cli_run",),
        "run_target": ("cli", "cli_inputs", "cli_errors", "cli_graphs"),
        "commands/show": ("cli_queries", "cli", "cli_graphs"),
        "commands/stats": ("cli_queries",),
        "target": ("cli", "cli_inputs", "cli_errors", "cli_logs", "cli_hub", "cli_queries"),
        "commands/view": ("cli_view", "cli_errors"),
        "command_errors": ("cli_errors", "cli_commands"),
    },
    "tbscope/comparison": {
        **dict.fromkeys(
            (
                *("changes", "api", "difference", "matching"),
                *("structure", "block_diff", "lock_file", "build_structure", "text", "union_graph"),
            ),
            _COMPARED,
        ),
    },
    "tbscope/integrations": {
        "callback": ("callback", "transformers_callback", "lightning_callback"),
        "lightning": ("lightning_callback",),
        "transformers": ("transformers_callback",),
    },
    "tbscope/overlays": {"overlay": _OVERLAID},
    "tbscope/ranks": {
        **dict.fromkeys(
            ("rank_classes", "graph_copy", "match_collectives", "merge", "rank_shares"), _MERGED
        ),
        **dict.fromkeys(("rank_options", "gather", "store_exchange"), _GATHERED),
    },
    "tbscope/saving": {
        "depth_limit": ("cut", "dot", "folds"),
        "dot": ("dot", "saving"),
        "html": _PICTURED,
        "mermaid": ("mermaid", "saving"),
        "box_tree": (*_PICTURED, "levels_of_pictures"),
        "repeats": ("folds", "dot", "levels_of_pictures"),
        "save": ("saving", "cli_forms"),
    },
    "tbscope/sources/compiled": dict.fromkeys(
        ("capture", "compiling", "graphs", "results"),
        _COMPILED,
    ),
    "tbscope/sources/torchscript": dict.fromkeys(
        (*("control_flow", "values", "operators", "scripts", "walk"),),
        _SCRIPTED,
    ),
    "tbscope/ir": {
        "editing": ("editing", "leaves", "readers", "kernels", "dead", "plumbing"),
        "graph": ("graph", "text", "kernels", "golden"),
        "placement/borrowed_calls": ("guests", "stands"),
        "placement/partition": ("partition", "guests", "stands"),
        "invariants": ("invariants", "phases"),
        "module_tree": ("held_parts", "summary", "summary_of_nodes"),
        "nodes": ("graph", "text", "notes", "kernels", "levels", "golden"),
        "scope_io": ("regions", "levels"),
        "scopes": ("scopes", "climbs", "text", "regions", "held_parts"),
        "builder": ("builder", "trace_scopes", "trace"),
        "pytree": ("nests_of_values", "graph"),
    },
    "tbscope/analysis": {
        "summary_columns": ("columns", "summary"),
        "costs": ("costs", "saved", "rank_figures", "summary"),
        "collapse_repeats": ("fold", "fold_definitions", "summary"),
        "notes": ("notes", "record"),
        "summary": ("rows", "summary", "summary_of_nodes", "cli_queries"),
        "text_tables": ("summary", "cli_queries"),
        "units": ("columns", "summary"),
    },
    "tbscope/writing": {
        "records": ("records", "at_once", "sinks", "reading_order", "write_failures"),
        "event_sinks": ("sinks", "writer", "many_writers", "run_names", "reading_order"),
        "tags": ("steps", "tags", "tag_kinds", "run_names", "reading_order", "writer"),
    },
    "tbscope/sources/eager/record": {
        "training/backward": _STEPPED,
        "ranks": _RANKED,
        "collective_scopes": _RANKED,
        "training/optimizer_step": _STEPPED,
        "events": ("careful", "watching", "watching_odd_steps"),
        "tensor_sources": (
            "discovery",
            "trace_inputs",
            "held_parts",
            "handed_over",
            "dead",
            "wrappers",
            "memory_law",
            "rank_operations",
        ),
        "training/autograd_producers": ("backward", "backward_threads"),
        "operation": ("operation", "flops", "trace_dataflow", "levels", "kernels"),
        "kernel_bodies": ("operation", "levels", "kernels"),
        "recorder": ("careful", "record", "trace", "threads", "watching"),
        "module_calls": (*_RECORDED, "trace_scopes", "trace"),
        "dataflow": (*_RECORDED, "operators", "trace_scopes", "trace", "notes", "flops"),
        "scope_stack": (
            "trace_scopes",
            "by_hand",
            "late_scopes",
            "unfinished",
            "memory_law",
            "summary",
            "record",
        ),
        "training/training": (*_STEPPED, "trace_dataflow", "whole_steps"),
        "call_site": ("whereabouts", "called_modules", "runs", "record"),
        "tensors/values": (
            "memory_law",
            "trace_dataflow",
            "operators",
            "storage",
            "nests",
            "record",
        ),
    },
    "tbscope/sources/eager/watch": {
        "modes": (
            "trace_dataflow",
            "trace_errors",
            "operators",
            "flops",
            "profile",
            "levels",
            "backward_threads",
        ),
        "module_calls": ("trace_scopes", "trace_errors", "record", "own_modes", "watching"),
        "thread_handover": ("handed_over", "backward_threads", "threads"),
    },
    "tbscope/sources/eager/restore": {
        "object_snapshot": _KEPT,
        "process_settings": (*_KEPT, "kept_process"),
        "tensor_snapshot": (*_KEPT, "hooks_put_back"),
        "preserve": _KEPT,
    },
    "tbscope/sources/torch": {
        "operations": ("roles", "flops", "operation_arguments", "trace_dataflow", "notes", "trace"),
        "module_names": (
            "trace_scopes",
            "late_scopes",
            "trace",
            "guests",
            "summary",
            "own_modes",
            "trace_dataflow",
        ),
        "subclasses": ("storage", "trace_dataflow", "packed", "contents"),
    },
    "tbscope/passes": {
        "replace_uses": _FOLDED,
        "dead_code": ("readers", "dead", "pipeline"),
        "user_hidden": _FOLDED,
        "expand_kernels": ("kernels", "levels"),
        "collapse_leaves": ("leaves", "cards", "golden"),
        "detail_level": ("overview", "levels", "pipeline"),
        "collapse_modules": ("readers", "dead", "levels"),
        "hide_views": _FOLDED,
        "tied_parameters": ("ties", "lent", "circles"),
    },
    "tbscope/drawing": {
        "graph_def": ("build", "golden", "cards"),
        "info_cards": ("module_cards", "cards", "leaves", "flops", "golden"),
        "chunks": ("chunks", "golden"),
        "placement/split_levels": ("chunks", "golden"),
        "placement/split_hubs": ("short_runs", "chunks"),
        "placement/containers": ("stands", "guests"),
        "figures": ("figure_sums", "figures", "overlays"),
        "layout": ("layout_heads", "layout", "chunks", "templates", "golden"),
        "naming": ("unique", "naming", "golden", "build"),
        "figure_placement": ("places", "overlays"),
        "color_seeds": ("templates", "golden"),
    },
    "tbscope/page": {
        "hierarchy": ("edges", "both_models", "hierarchy"),
        "glyphs": ("library", "templates"),
        "op_types": ("ops", "hierarchy"),
        "series": ("folding", "crowds", "siblings", "both_models"),
        "level_graph": ("siblings", "both_models", "chunks", "flow", "lint_edges"),
        "templates": ("structures", "templates"),
    },
    "tbscope/graphdef": {
        "wire": ("entries", "build", "records"),
    },
    "tbscope/rules": dict.fromkeys(
        ("levels", "linter", "nodes", "rule"),
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
