"""From a graph to a drawing: names, layout, cards, circles, chunks, templates."""
