"""Finds the steps back in loops, without which nodes are in an order."""

__all__ = ["back_edges"]


def back_edges(count: int, readers: list[list[int]]) -> set[tuple[int, int]]:
    """Return the steps, from a node to one that reads it, that lead back: without them no cycle is.

    A loop is entered from outside, so the step back is the one that ends where it was entered.

    Args:
        count: How many nodes there are.
        readers: For each the nodes that read it.
    """
    unread = [True] * count
    for each in readers:
        for reader in each:
            unread[reader] = False
    # From what reads nothing first: so a loop is met where it is entered.
    starts = [node for node in range(count) if unread[node]]
    found: set[tuple[int, int]] = set()
    # 1 while a node is on the way, 2 when all after it has been seen.
    state = bytearray(count)
    for start in (*starts, *range(count)):
        if state[start]:
            continue
        state[start] = 1
        way = [(start, iter(readers[start]))]
        while way:
            node, ahead = way[-1]
            for reader in ahead:
                if state[reader] == 1:
                    found.add((node, reader))
                elif not state[reader]:
                    state[reader] = 1
                    way.append((reader, iter(readers[reader])))
                    break
            else:
                state[node] = 2
                way.pop()
    return found
