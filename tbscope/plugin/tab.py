"""The tab: the routes by which TensorBoard's page asks for the viewer and for graphs.

TensorBoard imports this module at its start, so nothing here imports torch or a reader of logs
before a graph is asked for.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tensorboard.plugins import base_plugin

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph
    from tbscope.plugin.graphs import LoggedGraphs
    from tbscope.plugin.records import Place
    from tbscope.saving.levels import Levels

__all__ = ["ModelTab"]

_Number = TypeVar("_Number", int, float)

_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/plain"}


class ModelTab(base_plugin.TBPlugin):  # type: ignore[misc]
    """The plugin that TensorBoard finds under its entry point `tensorboard_plugins`.

    Source: tensorboard/plugins/base_plugin.py; TensorBoard's ADDING_A_PLUGIN.md
    """

    plugin_name = "tbscope"

    def __init__(self, context: Any) -> None:
        """Remember where the data of the log is."""
        self._provider = context.data_provider
        self._logdir = context.logdir or ""
        self._graphs: LoggedGraphs | None = None

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """Return the WSGI application of each route."""
        from tbscope.plugin.assets import ASSETS

        apps = {f"/{name}": _app(partial(self._asset, name)) for name in ASSETS}
        return {
            **apps,
            "/graphs": _app(self._runs),
            "/figures": _app(partial(self._answer, "figures")),
            **{f"/{kind}": _app(partial(self._answer, kind)) for kind in _ANSWERS},
        }

    def is_active(self) -> bool:
        """Whether the tab is shown beside what `data_plugin_names` decides: never."""
        return False

    def data_plugin_names(self) -> tuple[str, ...]:
        """Return the kinds of data for which TensorBoard shows the tab: those of graphs."""
        from tensorboard.plugins.graph import metadata

        return (
            metadata.PLUGIN_NAME,
            metadata.PLUGIN_NAME_RUN_METADATA,
            metadata.PLUGIN_NAME_RUN_METADATA_WITH_GRAPH,
            metadata.PLUGIN_NAME_KERAS_MODEL,
        )

    def frontend_metadata(self) -> Any:
        """Return the script of the tab, and its title."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Model")

    # -- answers -----------------------------------------------------------------------------

    def _asset(self, name: str, request: Any) -> Any:
        from tbscope.plugin.assets import ASSETS

        return _respond(request, ASSETS[name](), _TYPES[name.rpartition(".")[2]])

    def _runs(self, request: Any) -> Any:
        context, experiment = _asked_by(request)
        logged = self._logged()
        runs, overlays = logged.runs(context, experiment), logged.overlays(context, experiment)
        return _respond(request, {"graphs": runs, "overlays": overlays})

    def _answer(self, kind: str, request: Any) -> Any:
        """Answer with a part of a picture, or with an error that the page shows."""
        from tbscope.errors import TbscopeError
        from tbscope.plugin.graphs import Place

        context, experiment = _asked_by(request)
        asked = request.args
        try:
            step = _number(asked["step"], int) if "step" in asked else None
            time = _number(asked["time"], float) if "time" in asked else None
            place = Place(experiment, asked.get("run", ""), asked.get("tag", ""), step, time)
            logged = self._logged()
            before = _before(asked, experiment)
            levels = partial(logged.levels, context, place, before)
            if kind == "page":
                from tbscope.saving.html import page_of_levels

                # As text: as a page of this server, it would have the rights of TensorBoard's.
                # A record says nothing of the graph that another one is compared with.
                record = None if before else logged.record(context, place)
                page = page_of_levels(levels(), record)
                return _respond(request, page, _TYPES["html"])
            if kind == "figures" and "overlay" in asked:
                told = {kind: logged.overlay(context, place, asked["overlay"])}
            elif kind == "figures":
                told = {kind: levels().asked(asked.get("key", ""))}
            elif kind == "record":
                told = _record(levels(), logged.record_of(context, place))
            else:
                told = _part(levels(), kind, asked.get("number"))
        except TbscopeError as error:
            return _respond(request, {"error": str(error)}, code=400)
        return _respond(request, told)

    def _logged(self) -> "LoggedGraphs":
        if self._graphs is None:
            from tbscope.plugin.graphs import LoggedGraphs

            self._graphs = LoggedGraphs(self._provider, self._logdir)
        return self._graphs


_ANSWERS = ("head", "level", "card", "index", "modules", "page", "record")


def _app(answer: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a WSGI application of a function from a request to its response."""
    from werkzeug import wrappers

    application: Callable[..., Any] = wrappers.Request.application(answer)
    return application


def _respond(request: Any, content: Any, kind: str = "application/json", code: int = 200) -> Any:
    from tensorboard.backend import http_util

    # Compact: TensorBoard itself would put a blank behind each comma.
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return http_util.Respond(request, text, kind, code=code)


def _asked_by(request: Any) -> tuple[Any, str]:
    """Return TensorBoard's context of a request, and its experiment."""
    from tensorboard import plugin_util

    environ = request.environ
    return plugin_util.context(environ), plugin_util.experiment_id(environ)


def _part(levels: "Levels", kind: str, number: str | None) -> dict[str, Any]:
    """Return one answer, with its words.

    Raises:
        ArgumentError: The number names nothing in the picture.
    """
    from tbscope.saving.levels import Words
    from tbscope.saving.tables import module_table

    words = Words()
    if kind == "modules":
        told = module_table(levels, words)
    elif kind in ("head", "index"):
        told = getattr(levels, kind)(words)
    else:
        told = getattr(levels, kind)(levels.require(_number(number, int), kind), words)
    return {"words": list(words.number), kind: told}


def _before(asked: Any, experiment: str) -> "Place | None":
    """Return where the graph is that another one is compared with; None for none.

    Raises:
        ArgumentError: Its step is no number.
    """
    from tbscope.plugin.records import Place

    if "before_run" not in asked:
        return None
    step = _number(asked["before_step"], int) if "before_step" in asked else None
    return Place(experiment, asked["before_run"], asked.get("before_tag", ""), step)


def _record(levels: "Levels", graph: "Graph") -> dict[str, Any]:
    """Return the answer with what the record of a graph has beside its picture."""
    from tbscope.saving.levels import Words
    from tbscope.saving.tables import record_lists

    words = Words()
    told = record_lists(levels, graph, words)
    return {"words": list(words.number), "record": told}


def _number(text: str | None, kind: Callable[[str], _Number]) -> _Number:
    from tbscope.errors import ArgumentError

    try:
        return kind(text or "")
    except ValueError as error:
        raise ArgumentError(
            f"{text!r} is no number",
            why="steps, times, boxes and nodes have numbers",
            fix="open the graph anew",
        ) from error
