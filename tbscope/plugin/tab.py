"""The tab: the routes by which TensorBoard's page requests the viewer and graphs.

TensorBoard imports this module at its start, so torch and the readers of logs are imported only
when a graph is requested.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tensorboard.plugins import base_plugin

from tbscope.saving.viewer_files import TAB, joined, viewer_body, viewer_style, viewer_text

if TYPE_CHECKING:
    from werkzeug.wrappers import Request, Response

    from tbscope.plugin.graphs import GraphLocation, LoggedGraphs


_Number = TypeVar("_Number", int, float)


ASSETS: dict[str, Callable[[], str]] = {
    # One file: modules that import each other are requested one after the other.
    "tab.js": partial(joined, TAB),
    "dagre.js": partial(viewer_text, "dagre/dagre.min.js"),
    "style.css": viewer_style,
    "body.html": viewer_body,
    **{name: partial(viewer_text, name) for name in ("index.js", "tab.css")},
}
"""The text of each file that the page of the tab requests, by name."""

_ANSWERS = ("figures", "head", "level", "card", "index", "modules", "page", "record")
_TYPES = {
    "js": "text/javascript",
    "css": "text/css",
    "html": "text/plain",
    "json": "application/json",
}


class ModelTab(base_plugin.TBPlugin):  # type: ignore[misc]
    """The plugin that TensorBoard finds under its entry point `tensorboard_plugins`.

    Source: tensorboard/plugins/base_plugin.py; TensorBoard's ADDING_A_PLUGIN.md
    """

    plugin_name = "tbscope"

    def __init__(self, context: Any) -> None:
        """Keep the data provider and the log directory."""
        self._provider = context.data_provider
        self._logdir = context.logdir or ""
        self._graphs: LoggedGraphs | None = None

    def get_plugin_apps(self) -> dict[str, Callable[..., object]]:
        """Return the WSGI application of each route."""
        from werkzeug import wrappers

        answers: dict[str, Callable[[Request], Response]] = {
            **{name: partial(self._asset, name) for name in ASSETS},
            "graphs": self._runs,
            **{kind: partial(self._answer, kind) for kind in _ANSWERS},
        }
        return {f"/{route}": wrappers.Request.application(give) for route, give in answers.items()}

    def is_active(self) -> bool:
        """Return False: TensorBoard shows the tab by `data_plugin_names` alone."""
        return False

    def data_plugin_names(self) -> tuple[str, ...]:
        """Return the kinds of data for which TensorBoard shows the tab: all kinds of graphs."""
        from tensorboard.plugins.graph import metadata

        return (
            metadata.PLUGIN_NAME,
            metadata.PLUGIN_NAME_RUN_METADATA,
            metadata.PLUGIN_NAME_RUN_METADATA_WITH_GRAPH,
            metadata.PLUGIN_NAME_KERAS_MODEL,
        )

    def frontend_metadata(self) -> object:
        """Return the script of the tab, and its title."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Model")

    # -- answers -----------------------------------------------------------------------------

    def _asset(self, name: str, request: "Request") -> "Response":
        return _respond(request, ASSETS[name](), _TYPES[name.rpartition(".")[2]])

    def _runs(self, request: "Request") -> "Response":
        context, experiment = _asked_by(request)
        logged = self._logged()
        runs, overlays = logged.runs(context, experiment), logged.overlays(context, experiment)
        return _respond(request, {"graphs": runs, "overlays": overlays})

    def _answer(self, kind: str, request: "Request") -> "Response":
        """Respond with a part of a picture, or with an error that the page shows."""
        from tbscope.errors import TbscopeError

        try:
            content = self._content(kind, request)
        except TbscopeError as error:
            return _respond(request, {"error": str(error)}, code=400)
        # A page is sent as plain text: as HTML from this server, it would have the rights of
        # TensorBoard's own page.
        return _respond(request, content, _TYPES["html" if kind == "page" else "json"])

    def _content(self, kind: str, request: "Request") -> object:
        """Return the answer of one kind: text for a page, otherwise data with its words.

        Raises:
            ArgumentError: The log, or a picture of it, does not contain the requested data.
        """
        from tbscope.saving.html import module_table, page_of_levels, record_lists
        from tbscope.saving.levels import Words

        context, experiment = _asked_by(request)
        asked, logged, words = request.args, self._logged(), Words()
        location = _location(asked, experiment)
        before = _location(asked, experiment, "before_") if "before_run" in asked else None
        if kind == "figures" and "overlay" in asked:
            return {kind: logged.overlay(context, location, asked["overlay"])}
        levels = logged.levels(context, location, before)
        if kind == "figures":
            return {kind: levels.asked(asked.get("key", ""))}
        if kind == "page":
            # A record describes one graph, so a page of two graphs has none.
            record = None if before else logged.record(context, location)
            return page_of_levels(levels, record)
        if kind == "record":
            answer = record_lists(levels, logged.record_of(context, location), words)
        elif kind == "modules":
            answer = module_table(levels, words)
        elif kind in ("head", "index"):
            answer = getattr(levels, kind)(words)
        else:
            number = levels.require(_number(asked.get("number"), int), kind)
            answer = getattr(levels, kind)(number, words)
        return {"words": list(words.number), kind: answer}

    def _logged(self) -> "LoggedGraphs":
        if self._graphs is None:
            from tbscope.plugin.graphs import LoggedGraphs

            self._graphs = LoggedGraphs(self._provider, self._logdir)
        return self._graphs


def _respond(
    request: "Request", content: object, kind: str = "application/json", code: int = 200
) -> "Response":
    from tensorboard.backend import http_util

    # Compact: TensorBoard's own JSON has a blank after each comma.
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    response: Response = http_util.Respond(request, text, kind, code=code)
    return response


def _asked_by(request: "Request") -> tuple[object, str]:
    """Return TensorBoard's context and experiment of a request."""
    from tensorboard import plugin_util

    environ = request.environ
    return plugin_util.context(environ), plugin_util.experiment_id(environ)


def _location(asked: Mapping[str, str], experiment: str, of: str = "") -> "GraphLocation":
    """Return the position of a graph from the arguments of a request.

    Args:
        asked: The arguments.
        experiment: TensorBoard's experiment.
        of: The prefix of the arguments' names: `before_` for the graph to compare with.
    Raises:
        ArgumentError: The step or the time is no number.
    """
    from tbscope.plugin.graphs import GraphLocation

    step, time = asked.get(f"{of}step"), asked.get(f"{of}time")
    return GraphLocation(
        experiment,
        asked.get(f"{of}run", ""),
        asked.get(f"{of}tag", ""),
        None if step is None else _number(step, int),
        None if time is None else _number(time, float),
    )


def _number(text: str | None, kind: Callable[[str], _Number]) -> _Number:
    from tbscope.errors import ArgumentError

    try:
        return kind(text or "")
    except ValueError as error:
        raise ArgumentError(
            f"{text!r} is no number",
            why="steps, times, boxes and nodes have numbers",
            fix="open the graph again",
        ) from error
