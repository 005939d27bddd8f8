"""The tab: the routes by which TensorBoard's page asks for the viewer and for graphs.

TensorBoard imports this module at its start, so nothing here imports torch or a reader of logs
before a graph is asked for.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorboard.plugins import base_plugin

if TYPE_CHECKING:
    from tbscope.plugin.graphs import LoggedGraphs

__all__ = ["ModelTab"]

_ASSETS = {
    "index.js": "text/javascript",
    "tab.css": "text/css",
    "style.css": "text/css",
    "body.html": "text/plain",
    "dagre.js": "text/javascript",
}


class ModelTab(base_plugin.TBPlugin):  # type: ignore[misc]
    """The plugin that TensorBoard finds under its entry point `tensorboard_plugins`.

    Source: tensorboard/plugins/base_plugin.py; TensorBoard's ADDING_A_PLUGIN.md
    """

    plugin_name = "tbscope"

    def __init__(self, context: Any) -> None:
        """Remember where the data of the log is."""
        self._provider = context.data_provider
        self._graphs: LoggedGraphs | None = None

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """Return the WSGI application of each route."""
        answers = {f"/{name}": partial(_answer, self, name) for name in _ANSWERS}
        return {**answers, **{f"/{name}": partial(_file, name) for name in _files()}}

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
        return base_plugin.FrontendMetadata(
            es_module_path="/index.js", tab_name="Model", disable_reload=True
        )
