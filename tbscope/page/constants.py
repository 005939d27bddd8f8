"""The numbers and words that decide how TensorBoard's page draws a GraphDef.

They stand here and nowhere else. Lines are those of tensorboard/plugins/graph of TensorBoard
2.21; numbers without a line were measured in its page.
"""

__all__ = [
    "ASIDE_OP",
    "ATTRIBUTE_BYTES",
    "BOX_LABEL",
    "BOX_LABEL_WIDTH",
    "BOX_LETTERS",
    "BOX_ROOM",
    "CHAIN_LIMIT",
    "COLOURED_LIMIT",
    "CONTROL_LIMIT",
    "CROWD_SIZE",
    "DEGREE_LIMIT",
    "EXACT_INTEGER",
    "HUES",
    "LEVEL_LIMIT",
    "LIBRARY",
    "LIBRARY_ENDING",
    "NODE_LABEL",
    "NODE_LABEL_WIDTH",
    "SERIES_SIZE",
    "SLOW_LIMIT",
    "STACK_LIMIT",
]

LEVEL_LIMIT = 100
"""So many operations may stand on one level; the page lays it out in less than a second."""

SLOW_LIMIT = 300
"""So many glyphs, modules and inputs too, may stand on one level: it is laid out in two or three
seconds."""

STACK_LIMIT = 250
"""How many equal siblings a stack holds at most: they are laid out only when somebody opens it,
and then all of them, in about a second."""

CHAIN_LIMIT = 1000
"""A chain twice as long on one level leaves the page blank: dagre's longest path recurses. So many
glyphs are laid out in some ten seconds."""

SERIES_SIZE = 5
"""From so many members on, a series is folded (hierarchy.ts:474, `DefaultHierarchyParams`)."""

CROWD_SIZE = 15
"""From so many glyphs on a level, those with far more lines than the others are put aside
(render.ts:129-191, `PARAMS`)."""

DEGREE_LIMIT = 4
"""Up to so many lines on one side never put a glyph aside (render.ts:129-191, `PARAMS`)."""

CONTROL_LIMIT = 4
"""With more control lines than this, a glyph has all of them cut (render.ts:129-191, `PARAMS`)."""

ASIDE_OP = "NoOp"
"""The op type of nodes that are always put aside (render.ts:172, `outExtractTypes`)."""

LIBRARY = "__function_library__"
"""How the name of a box begins that stands in the panel of functions (graph.ts:25)."""

LIBRARY_ENDING = "_template"
"""An ending that the panel cuts off: `_` and eight characters (render.ts:200,
`nodeDisplayNameRegex`)."""

HUES = 10
"""How many colours structures have: every tenth has the same (render.ts, `MetanodeColors.HUES`)."""

COLOURED_LIMIT = 10_000
"""A graph with more nodes and more edges than this has no colours until one asks for them
(tf_graph_board.ts:33, `maxGraphSizeToComputeTemplates`)."""

BOX_ROOM = 13
"""About how many characters of the label of a closed box are seen (node.ts:440-514,
`enforceLabelWidth`)."""

BOX_LABEL_WIDTH = 52
"""How wide the label of a closed box may be (layout.ts:108, `nodeSize.meta.maxLabelWidth`)."""

BOX_LETTERS = 11, 18
"""Up to so many characters the label of a closed box is large, from so many on small; more than
those are cut (tf_graph_scene.ts:165-189)."""

BOX_LABEL = 9, 6
"""The sizes of large and of small letters on closed boxes (tf_graph_scene.ts:165-189)."""

NODE_LABEL_WIDTH = 30
"""How wide the label of a node may be (layout.ts:126, `nodeSize.op.maxLabelWidth`)."""

NODE_LABEL = 6
"""The size of letters on nodes (common.ts, `FontSizeInPx.Node.OP_LABEL`)."""

ATTRIBUTE_BYTES = 1024
"""So many bytes an attribute should have at most: the page has every byte of each sent to it."""

EXACT_INTEGER = 2**53
"""The largest number up to which JavaScript holds every integer."""
