"""Notebooks: the page of a graph in a frame that can reach nothing around it."""

import html

from tbscope.collector import not_collecting
from tbscope.ir.graph import Graph, require_graph
from tbscope.saving.html import page_of
from tbscope.saving.picture import picture_of

__all__ = ["MOST_BYTES", "graph_to_frame"]

MOST_BYTES = 2_000_000
"""How large a frame may be: notebooks keep what they show, and load it all when they open."""

_HEIGHT = 620


def graph_to_frame(graph: Graph) -> str:
    """Return a graph as a notebook shows it.

    A graph whose page is too large is drawn with equal blocks as one node, and one that is
    too large for that, too, is told in a line.
    """
    require_graph(graph, "_repr_html_")
    with not_collecting():
        return _frame(graph)


def _frame(graph: Graph) -> str:
    page = page_of(picture_of(graph))
    told = ""
    if len(page) > MOST_BYTES:
        told = "Equal blocks stand for each other here"
        page = page_of(picture_of(graph, level="overview"))
    if len(page) > MOST_BYTES:
        return f"<p>{html.escape(repr(graph))} {_LARGE}</p>"
    # Scripts run in it, and of the notebook around it they see nothing.
    frame = (
        f'<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{_HEIGHT}px;'
        f'border:1px solid #8888;border-radius:8px" srcdoc="{html.escape(page)}"></iframe>'
    )
    return f"{frame}<p>{told}. {_LARGE}</p>" if told else frame


_LARGE = "All of it is in the page that <code>graph.save('graph.html')</code> writes."
