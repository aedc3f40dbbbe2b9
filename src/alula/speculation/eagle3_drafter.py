"""Drafting with EAGLE-3: follow the target's features, then expand a chain or a tree.

The pair (feature of t, token t + 1) is kept at the slot of logical position t + 1, its rotary
position being t. Nodes get their numbers only when the tree is complete, so that while drafting
their keys lie in slots behind the shared pages, numbered in the order of expansion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.errors import ModelError
from alula.ops.expand import Drafts, Frontier, Growth, Roots, candidates
from alula.ops.pair import Pairs
from alula.ops.rope import Rotation
from alula.ops.rows import Rows
from alula.ops.store import places
from alula.sampling.noise import gumbel
from alula.speculation.drafter import DraftContext, Drafter, Round
from alula.speculation.eagle3 import Eagle3, Output
from alula.speculation.tree import DraftTree, TreeShape, nodes_to

_NO_LIMIT = 1 << 62


class Eagle3Drafter(Drafter):
    """Proposes what an EAGLE-3 network makes likely, given the noise the target will see."""

    def __init__(
        self,
        network: Eagle3,
        shape: TreeShape,
        *,
        taps: tuple[int, ...],
        calibration: float = 1.0,
    ) -> None:
        """`calibration` scales the perturbed log probabilities that rank the nodes of a tree at
        temperatures above 0: below 1, a gap says less. Raises ModelError where a node cannot have
        as many children as the shape asks for.
        """
        super().__init__(shape)
        if shape.width > network.config.draft_vocab_size:
            raise ModelError(
                f"the drafter cannot draft the shape {shape}",
                f"its vocabulary has {network.config.draft_vocab_size} tokens",
                "lower the width",
            )
        self.taps = taps
        self._network = network
        self._calibration = calibration
        self._room = max(shape.depth - 1, 0) * shape.width
        self._scratch = 0

    def allocate(self, pages: int, page_size: int, sequences: int, device: torch.device) -> None:
        """Make a pool of the target's page numbers and, behind them, room for unfinished drafts."""
        self._scratch = pages * page_size
        self._numbers = torch.arange(sequences, device=device)
        self._frontiers = self._numbers.repeat_interleave(self.shape.width)
        self._pool = KVPool(
            layers=1,
            pages=pages + -(-sequences * self._room // page_size),
            kv_heads=self._network.config.kv_heads,
            head_dim=self._network.config.head_dim,
            page_size=page_size,
            dtype=self._network.dtype,
            device=device,
        )

    @torch.inference_mode()
    def propose(self, context: DraftContext, depth: int) -> DraftTree:
        """See `Drafter.propose`. Sequences that draft have a feature of their root's predecessor.

        Features are grouped by sequence in ascending order.
        """
        nodes = nodes_to(self.shape, depth)
        shape = (context.history.shape[0], nodes)
        tree = DraftTree(*(context.history.new_full(shape, fill) for fill in (-1, 0)))
        output = self._follow(context, drafts=nodes > 0)
        if output is not None:
            roots = Roots(
                lines=context.drafting,
                lengths=context.lengths,
                limits=torch.full_like(context.lengths, _NO_LIMIT),
                keys=context.keys,
                temperatures=context.temperatures,
                page_table=context.page_table[context.drafting],
            )
            growth = self._growth(context.greedy)
            self._expand(output, roots, growth, Drafts(*tree), min(depth, self.shape.depth))
        return tree

    @torch.inference_mode()
    def draft_on(self, round_: Round, depth: int) -> None:
        """See `Drafter.draft_on`."""
        assert round_.page_features is not None
        network, pool, roots = self._network, self._pool, round_.roots
        followed = network.kernels.catch_up(
            round_.aux, round_.committed, round_.page_features, pool.page_size
        )
        fused = network.fuse(followed.features)
        pairs = network.pair(fused, followed.tokens, followed.positions)
        depth, count = min(depth, self.shape.depth), len(roots.lines)
        if depth == 0:
            network.store(pairs, followed.at, pool)
            round_.drafts.tokens.index_fill_(0, roots.lines, -1)
            return
        newest = (followed.positions[:count], followed.slots[:count], followed.last[:count])
        plan = network.plan(self._before_roots(*newest, roots.page_table), pool)
        output = network.forward(pairs, followed.at, plan, pool, count)
        self._expand(output, roots, self._growth(round_.greedy), round_.drafts, depth)

    def _follow(self, context: DraftContext, *, drafts: bool) -> Output | None:
        """Store the pairs of all features; run the layer where a draft begins."""
        assert context.features is not None
        network, size = self._network, self._pool.page_size
        sequences, positions = context.feature_sequences, context.feature_positions
        own = positions + 1
        following = context.history[sequences, own.clamp_max(context.history.shape[1] - 1)]
        pairs = network.pair(network.fuse(context.features), following, positions)
        slots = context.page_table[sequences, own // size] * size + own % size
        if not drafts or not len(context.drafting):
            network.store(pairs, places(slots, size), self._pool)
            return None
        latest = context.latest
        newest = (positions[latest], slots[latest], own[latest])
        rows = self._before_roots(*newest, context.page_table[context.drafting])
        plan = network.plan(rows, self._pool)
        is_other = torch.ones_like(slots, dtype=torch.bool)
        is_other[latest] = False
        others = is_other.nonzero()[:, 0]
        if len(others):
            network.store(_taken(pairs, others), places(slots[others], size), self._pool)
        at = places(rows.slots, size)
        return network.forward(_taken(pairs, latest), at, plan, self._pool)

    def _before_roots(
        self, positions: Tensor, slots: Tensor, last: Tensor, page_table: Tensor
    ) -> Rows:
        """The pairs [S] from which the drafts of S sequences begin."""
        return Rows(
            positions=positions,
            slots=slots,
            sequences=self._numbers[: len(last)],
            last=last,
            page_table=page_table,
            base=last,
            first=1,
            settled=False,  # the others' keys are stored in the same pass
        )

    def _expand(
        self, output: Output, roots: Roots, growth: Growth, drafts: Drafts, depth: int
    ) -> None:
        """Draft `depth` levels, the layer having run over the roots' predecessors."""
        kernels, count = self._network.kernels, len(roots.lines)
        found, frontier = candidates(growth, count, depth), None
        for _ in range(1, depth):
            frontier = kernels.grow(output.logits, roots, growth, found, frontier)
            output = self._step(output.hidden, roots, frontier)
        nodes = nodes_to(self.shape, depth)
        kernels.finish(output.logits, roots, growth, found, frontier, nodes, drafts)

    def _step(self, hidden: Tensor, roots: Roots, frontier: Frontier) -> Output:
        """Run the layer over a frontier, `hidden` being that of the level before."""
        pairs = self._network.pair(hidden, frontier.tokens, frontier.positions, frontier.sources)
        rows = Rows(
            positions=frontier.positions,
            slots=frontier.tail[:, -1],
            sequences=self._frontiers[: len(frontier.tokens)],
            last=frontier.last,
            page_table=roots.page_table,
            base=frontier.base,
            tail=frontier.tail,
            first=1,
        )
        plan = self._network.plan(rows, self._pool)
        return self._network.forward(pairs, frontier.at, plan, self._pool)

    def _growth(self, greedy: bool) -> Growth:
        return Growth(
            width=self.shape.width,
            target_ids=self._network.target_ids,
            calibration=self._calibration,
            noise=None if greedy else gumbel,
            scratch=self._scratch,
            room=self._room,
            page_size=self._pool.page_size,
        )


def _taken(pairs: Pairs, rows: Tensor) -> Pairs:
    return Pairs(
        inputs=pairs.inputs[rows],
        residual=pairs.residual[rows],
        rotation=Rotation(*(part[rows] for part in pairs.rotation)),
        room=None if pairs.room is None else pairs.room[:, rows],
    )
