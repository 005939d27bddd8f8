"""Constants: the numbers and words that decide how TensorBoard's page draws a GraphDef.

No other file repeats them. File and line refer to tensorboard/plugins/graph of TensorBoard
2.21; numbers without a reference were measured in its page.
"""

LEVEL_LIMIT = 100
"""The most operations on one level; the page lays out that many in less than a second."""

SLOW_LIMIT = 300
"""The most glyphs on one level, modules and inputs included; the page lays out that many in two
or three seconds."""

STACK_LIMIT = 250
"""The most members of a stack: the page lays them out only when a user opens the stack, and then
all of them, in about a second."""

CHAIN_LIMIT = 1000
"""The most glyphs on one level that the page still draws, in some ten seconds. A chain of twice as
many leaves it blank, since dagre's longest path recurses."""

SERIES_SIZE = 5
"""The fewest members of a series that is folded (hierarchy.ts:474, `DefaultHierarchyParams`)."""

CROWD_SIZE = 15
"""The fewest glyphs on a level at which the page puts those aside that have far more lines than
the others (render.ts:129-191, `PARAMS`)."""

DEGREE_LIMIT = 4
"""The most lines on one side that never put a glyph aside (render.ts:129-191, `PARAMS`)."""

CONTROL_LIMIT = 4
"""The most control lines of a glyph; beyond, all of them are cut (render.ts:129-191, `PARAMS`)."""

ASIDE_OP = "NoOp"
"""The op type of nodes that are always put aside (render.ts:172, `outExtractTypes`)."""

LIBRARY = "__function_library__"
"""The prefix of the names of boxes in the panel of functions (graph.ts:25)."""

LIBRARY_ENDING = "_template"
"""An ending that the panel cuts off: `_` and eight characters (render.ts:200,
`nodeDisplayNameRegex`)."""

HUES = 10
"""The number of colours of structures, which repeat (render.ts, `MetanodeColors.HUES`)."""

COLOURED_LIMIT = 10_000
"""A graph with more nodes and more edges than this is not coloured until the user asks for it
(tf_graph_board.ts:33, `maxGraphSizeToComputeTemplates`)."""

BOX_LABEL_WIDTH = 52
"""The width at which the label of a closed box is cut (layout.ts:108,
`nodeSize.meta.maxLabelWidth`)."""

BOX_LETTERS = 11, 18
"""The most characters in large letters on a closed box, and the number from which on letters are
small; labels beyond the latter are cut (tf_graph_scene.ts:165-189)."""

BOX_LABEL = 9, 6
"""The sizes of large and of small letters on closed boxes (tf_graph_scene.ts:165-189)."""

NODE_LABEL_WIDTH = 30
"""The width at which the label of a node is cut (layout.ts:126, `nodeSize.op.maxLabelWidth`)."""

NODE_LABEL = 6
"""The size of letters on nodes (common.ts, `FontSizeInPx.Node.OP_LABEL`)."""

ATTRIBUTE_BYTES = 1024
"""The most bytes that an attribute should have: the page downloads every byte of it."""

EXACT_INTEGER = 2**53
"""The number up to which JavaScript represents every integer exactly."""
