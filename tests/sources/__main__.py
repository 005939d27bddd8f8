"""Prints how far all sources of each model agree: `python -m tests.sources --only Bert`."""

import argparse
import functools
import logging
import re
import sys
import traceback
from typing import Any

import torch

import tbscope
from tests.agreement import check_whole
from tests.sources.compare import compare, compare_operations
from tests.sources.forms import FORMS, TorchError
from tests.sources.models import NAMES, model_of
from tests.zoo.farm import farm


def main() -> int:
    """Compare what is asked for; give 0 if all that differs has a name."""
    options = _options()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    tbscope.trace, tbscope.to_graph_def  # noqa: B018  (Loaded once, before a child is forked.)
    names = [name for name in NAMES if options.only.search(name)]
    print(f"{len(names)} models, {len(FORMS)} sources each, beside an eager call")
    wrong = told = 0
    for name, rows, error in farm(names, _row, jobs=options.jobs, limit_s=options.limit):
        print(name if error is None else f"{name} FAILED: {error.strip()[-1000:]}", flush=True)
        wrong += error is not None
        for form, state, text in rows or ():
            wrong += state == "wrong"
            told += state != "torch"
            print(f"    {form:12} {text}", flush=True)
    print(f"\n{told} graphs compared; {wrong} differ without a name")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sources", description=__doc__)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX")
    parser.add_argument("--source", type=re.compile, default=re.compile(""), metavar="REGEX")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each model")
    return parser.parse_args()


def _row(name: str) -> list[tuple[str, str, str]]:
    """Compare every source of a model; give name, state and text of each."""
    model = model_of(name)
    forms = [form for form in FORMS if _options().source.search(form.name)]
    return [(form.name, *_compared(form, model)) for form in forms]


def _compared(form: Any, model: Any) -> tuple[str, str]:
    try:
        graph = form.graph(model)
        check_whole(graph)
    except TorchError as error:
        # torch colours some of what it says.
        said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split()
        return "torch", f"torch cannot make it: {' '.join(said)[:100]}"
    except Exception:  # noqa: BLE001  (Whatever it raises is what is to be told.)
        return "wrong", f"FAILED {traceback.format_exc(limit=-4)}"
    found = [compare(model.eager, graph, form.differs, model.module)]
    if form.asked:
        again = functools.partial(form.answered, model)
        found.append(compare_operations(model.eager, graph, form.differs, again, model.module))
    faults = {key: fault for one in found for key, fault in one.faults.items()}
    if faults:
        return "wrong", f"DIFFERS {str(faults)[:2000]}"
    kinds = dict.fromkeys(kind for one in found for kind in one.kinds)
    return "right", "; ".join(["agrees", *kinds])


if __name__ == "__main__":
    sys.exit(main())
