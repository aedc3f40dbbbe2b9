"""Small draft trees for property tests: few tokens, so that siblings often agree."""

import torch
from hypothesis import strategies as st

from alula.speculation.tree import DraftTree


@st.composite
def trees(draw, max_sequences: int = 3, max_nodes: int = 7, vocabulary: int = 3) -> DraftTree:
    """Trees of up to `max_nodes` nodes; unused ones have token -1 and come last."""
    sequences = draw(st.integers(1, max_sequences))
    nodes = draw(st.integers(0, max_nodes))
    lines = [_line(draw, nodes, vocabulary) for _ in range(sequences)]
    tokens, parents = (
        torch.tensor(part, dtype=torch.int64).view(sequences, nodes)
        for part in zip(*lines, strict=True)
    )
    return DraftTree(tokens, parents)


def _line(draw, nodes: int, vocabulary: int) -> tuple[list[int], list[int]]:
    used = draw(st.integers(0, nodes))
    tokens = [draw(st.integers(0, vocabulary - 1)) for _ in range(used)]
    parents = [draw(st.integers(0, node)) for node in range(used)]
    return tokens + [-1] * (nodes - used), parents + [0] * (nodes - used)
