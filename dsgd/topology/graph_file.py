"""Text files of graphs: a list of edges, one `i j` a line, or an adjacency matrix of numbers 0 and 1."""

from __future__ import annotations

from dsgd.host.files import text_lines

Edge = tuple[int, int]


def read_edges(path: str, nodes: int, directed: bool = False) -> list[Edge]:
    """Return the edges between nodes 0 to p - 1 in a file of either format, each once or in both directions; directed
    ones, (i, j) from i to j, as they are.

    Raises ValueError naming the file and the line."""
    lines: list[tuple[str, list[int]]] = []
    for number, line in enumerate(text_lines(path, "path"), start=1):
        where = f"({path}, line {number})"
        fields = line.split("#")[0].split()
        try:
            numbers = [int(word) for word in fields]
        except ValueError:
            raise ValueError(f"path must hold whole numbers and # comments, got {line[:40]!r} {where}") from None
        if numbers:
            lines.append((where, numbers))
    is_list = not lines or len(lines[0][1]) == 2
    return _edges_of_list(nodes, lines, directed) if is_list else _edges_of_matrix(path, nodes, lines, directed)


def _edges_of_list(nodes: int, lines: list[tuple[str, list[int]]], directed: bool) -> list[Edge]:
    edges: dict[Edge, str] = {}
    for where, numbers in lines:
        if len(numbers) != 2:
            raise ValueError(f"path must hold one edge 'i j' a line, got {len(numbers)} numbers {where}")
        i, j = numbers
        if not (0 <= i < nodes and 0 <= j < nodes):
            raise ValueError(f"path must name nodes 0 to {nodes - 1} (nodes={nodes}), got edge {i} {j} {where}")
        if i == j:
            raise ValueError(f"path must have no self loops, got edge {i} {j} {where}")
        if (i, j) in edges:
            raise ValueError(f"path must list an edge once, got {i} {j} again {where}")
        edges[i, j] = where
    one_way = [] if directed else [(i, j) for i, j in edges if (j, i) not in edges]
    if one_way and len(one_way) < len(edges):  # the others come with their reverse: a list of directed edges
        i, j = one_way[0]
        raise ValueError(f"path must be symmetric, got edge {i} {j} without {j} {i} {edges[i, j]}")
    return list(edges)


def _edges_of_matrix(path: str, nodes: int, lines: list[tuple[str, list[int]]], directed: bool) -> list[Edge]:
    rule = f"path must hold edges 'i j' or {nodes} lines of {nodes} numbers 0 or 1 (nodes={nodes})"
    for where, row in lines:
        if len(row) != nodes:
            raise ValueError(f"{rule}, got {len(row)} numbers {where}")
        if wrong := set(row) - {0, 1}:
            raise ValueError(f"{rule}, got {min(wrong)} {where}")
    if len(lines) != nodes:
        raise ValueError(f"{rule}, got {len(lines)} lines ({path})")
    matrix = [row for _, row in lines]
    for i, (where, row) in enumerate(lines):
        if row[i]:
            raise ValueError(f"path must have no self loops, got 1 in row {i} column {i} {where}")
        for j in range(i):
            if row[j] != matrix[j][i] and not directed:
                got = f"{row[j]} in row {i} column {j} and {matrix[j][i]} in row {j} column {i}"
                raise ValueError(f"path must be symmetric, got {got} {where}")
    return [(i, j) for i, row in enumerate(matrix) for j in range(nodes if directed else i) if row[j]]
