"""Drafting with EAGLE-3: follow the target's features, then expand a chain or a tree.

The pair (feature of t, token t + 1) is kept at the slot of logical position t + 1, its rotary
position being t. Nodes get their numbers only when the tree is complete, so that while drafting
their keys lie in slots behind the shared pages, numbered in the order of expansion.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.errors import ModelError
from alula.ops.rows import Rows
from alula.sampling.noise import gumbel
from alula.speculation.drafter import DraftContext, Drafter
from alula.speculation.eagle3 import Eagle3, Output, Pairs
from alula.speculation.expansion import Expansion
from alula.speculation.tree import DraftTree, TreeShape, nodes_to


class _Draft(NamedTuple):
    """The S' sequences that get a draft."""

    lengths: Tensor
    page_table: Tensor
    keys: Tensor
    temperatures: Tensor
    is_greedy: bool


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
        self._expanded = max(shape.depth - 1, 0) * shape.width
        self._scratch = 0

    def allocate(self, pages: int, page_size: int, sequences: int, device: torch.device) -> None:
        """Make a pool of the target's page numbers and, behind them, room for unfinished drafts."""
        self._scratch = pages * page_size
        self._pool = KVPool(
            layers=1,
            pages=pages + -(-sequences * self._expanded // page_size),
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
            drafted = self._draft(context, output, min(depth, self.shape.depth))
            tree.tokens[context.drafting] = drafted.tokens
            tree.parents[context.drafting] = drafted.parents
        return tree

    def _follow(self, context: DraftContext, *, drafts: bool) -> Output | None:
        """Store the pairs of all features; run the layer where a draft begins."""
        assert context.features is not None
        sequences, positions = context.feature_sequences, context.feature_positions
        behind = (positions + 1).clamp_max(context.history.shape[1] - 1)
        following = context.history[sequences, behind]
        pairs = self._network.pair(self._network.fuse(context.features), following, positions)
        slots = self._slots(context.page_table[sequences], positions + 1)
        if not drafts or not len(context.drafting):
            self._network.store(pairs, slots, self._pool)
            return None
        latest = context.latest
        own = positions[latest] + 1
        rows = Rows(
            positions=positions[latest],
            slots=slots[latest],
            sequences=torch.arange(len(own), device=own.device),
            last=own,
            page_table=context.page_table[context.drafting],
            base=own,
            first=1,
        )
        plan = self._network.plan(rows, self._pool)
        self._network.store(pairs, slots, self._pool)
        return self._network.forward(Pairs(*(part[latest] for part in pairs)), plan, self._pool)

    def _draft(self, context: DraftContext, output: Output, depth: int) -> DraftTree:
        lines = context.drafting
        draft = _Draft(
            lengths=context.lengths[lines],
            page_table=context.page_table[lines],
            keys=context.keys[lines],
            temperatures=context.temperatures[lines],
            is_greedy=context.greedy,
        )
        expansion = Expansion(len(lines), self.shape.width, lines.device)
        hidden = output.hidden[:, None]
        path = self._slots(draft.page_table, draft.lengths - 1).view(-1, 1, 1)
        for level in range(1, depth + 1):
            logits = output.logits.view(len(lines), -1, output.logits.shape[-1])
            expansion.add(*self._children(draft, logits, level))
            if level < depth:
                line = torch.arange(len(lines), device=lines.device)[:, None]
                parents = expansion.frontier.parents
                path = torch.cat((path[line, parents], self._own_slots(parents, level)), dim=-1)
                output = self._step(draft, hidden[line, parents], expansion.frontier.tokens, path)
                hidden = output.hidden.view(len(lines), -1, output.hidden.shape[-1])
        return expansion.tree(nodes_to(self.shape, depth))

    def _children(self, draft: _Draft, logits: Tensor, level: int) -> tuple[Tensor, Tensor]:
        """The best children [S', F, width] of nodes with logits [S', F, Vd], and their log scores.

        At temperature T a node's children are the top of log q / T + g, g being the noise that the
        target's own choice at that position will see (arXiv 2408.07978); at 0, of q.
        """
        ids = self._network.target_ids
        values = logits.log_softmax(-1)
        if draft.is_greedy:
            gains, best = values.topk(self.shape.width, dim=-1)
            return ids[best], gains
        sampled = (draft.temperatures > 0)[:, None, None]
        temperatures = draft.temperatures[:, None, None].where(sampled, 1.0)
        noise = gumbel(draft.keys, draft.lengths + level - 1, ids)[:, None]
        values = torch.where(sampled, values / temperatures + noise, values)
        top, best = values.topk(self.shape.width, dim=-1)
        perturbed = (top * self._calibration).log_softmax(-1)
        return ids[best], torch.where(sampled, perturbed, top)

    def _step(self, draft: _Draft, hidden: Tensor, tokens: Tensor, path: Tensor) -> Output:
        """Run the layer over the frontier [S', F]; `path` [S', F, 1 + level]: root … own slots."""
        sequences, width, places = path.shape
        own = (draft.lengths - 2 + places).repeat_interleave(width)
        pairs = self._network.pair(hidden.flatten(0, 1), tokens.flatten(), own - 1)
        tail = path.flatten(0, 1)
        rows = Rows(
            positions=pairs.positions,
            slots=tail[:, -1],
            sequences=torch.arange(sequences, device=own.device).repeat_interleave(width),
            last=own,
            page_table=draft.page_table,
            base=draft.lengths - 1,
            tail=tail,
            first=1,
        )
        plan = self._network.plan(rows, self._pool)
        self._network.store(pairs, rows.slots, self._pool)
        return self._network.forward(pairs, plan, self._pool)

    def _own_slots(self, nodes: Tensor, level: int) -> Tensor:
        """Slots [S', F, 1] for the keys of one level's frontier, like `nodes` [S', F]."""
        sequences, width = nodes.shape
        line = torch.arange(sequences, device=nodes.device)[:, None] * self._expanded
        column = torch.arange(width, device=nodes.device) + (level - 1) * self.shape.width
        return (self._scratch + line + column)[..., None]

    def _slots(self, page_tables: Tensor, positions: Tensor) -> Tensor:
        """Slots [R] of logical positions [R] in page tables [R, P]."""
        size = self._pool.page_size
        pages = page_tables.gather(1, (positions // size)[:, None])[:, 0]
        return pages * size + positions % size
