"""The device's state of running sequences: a line each, advanced by every launch.

Nothing here asks the device: what advances in a captured round advances without the host.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.engine.request import Sequence
from alula.ops.lines import LineState
from alula.sampling.state import SamplingState
from alula.speculation.tree import DraftTree

_STOP_IDS = 16
"""Room for so many from the start; a request with more makes it wider."""
_FEWEST_ENTRIES = 64
"""Of page tables that are written at a time on a GPU, with repetitions of the last one."""


class Lines:
    """Histories, lengths, page tables, limits and pending drafts of up to `count` sequences.

    Behind them lies one line more, `spare`, at its limit from the start: it fills launches up to
    the size they are captured in and writes into a page of its own.
    """

    def __init__(
        self,
        *,
        count: int,
        max_length: int,
        pages_per_line: int,
        draft_nodes: int,
        vocab_size: int,
        spare_page: int,
        device: torch.device,
    ) -> None:
        def integers(*shape: int, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.int64, device=device)

        lines = count + 1
        self.count = count
        self.spare = count
        self.device = device
        self.history = integers(lines, max_length + 1)
        self.lengths = integers(lines, fill=1)
        self.page_table = integers(lines, pages_per_line, fill=spare_page)
        self.limits = integers(lines, fill=1)
        self.stop_ids = integers(lines, _STOP_IDS, fill=-1)
        self.draft_tokens = integers(lines, draft_nodes, fill=-1)
        self.draft_parents = integers(lines, draft_nodes)
        self.sampling = SamplingState(lines, vocab_size, device)

    def admit(self, sequence: Sequence, limit: int, stop_ids: frozenset[int]) -> None:
        """Begin a sequence on its line: known tokens, most tokens in all, what stops it."""
        line, tokens = sequence.line, sequence.token_ids
        self.history[line, : len(tokens)] = torch.tensor(tokens, device=self.device)
        self.lengths[line] = len(tokens)
        self.limits[line] = limit
        self.draft_tokens[line] = -1
        self.draft_parents[line] = 0
        missing = len(stop_ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = F.pad(self.stop_ids, (0, missing), value=-1)
        stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=self.device)
        self.stop_ids[line] = -1
        self.stop_ids[line, : len(stops)] = stops
        self.sampling.admit(
            line, sequence.params, sequence.key, sequence.prompt_ids, sequence.output_ids
        )

    def set_pages(self, added: Iterable[tuple[int, int, list[int]]]) -> None:
        """Write new entries of page tables: of lines, each with the entry it begins at, the pages.

        The device need not have caught up with the host: all go over in one copy from pinned
        memory. Having memory pinned waits for the device, so there are few sizes, kept by torch.
        """
        entries = [
            (line, first + i, page) for line, first, pages in added for i, page in enumerate(pages)
        ]
        if not entries:
            return
        told = torch.tensor(entries)
        if self.device.type == "cuda":
            size = max(1 << (len(told) - 1).bit_length(), _FEWEST_ENTRIES)
            told = torch.cat((told, told[-1:].expand(size - len(told), 3))).pin_memory()
        line, at, page = told.to(self.device, non_blocking=True).unbind(1)
        self.page_table[line, at] = page

    @property
    def replaceable(self) -> tuple[int, ...]:
        """Which tensors are in use of those that a request may make the lines replace."""
        sampling = self.sampling
        kept = (self.stop_ids, sampling.prompt_seen, sampling.output_counts, sampling.bias)
        return tuple(0 if tensor is None else tensor.data_ptr() for tensor in kept)

    def state(self) -> LineState:
        """Where they stand."""
        return LineState(
            history=self.history,
            lengths=self.lengths,
            limits=self.limits,
            stop_ids=self.stop_ids,
            page_table=self.page_table,
            draft_tokens=self.draft_tokens,
            draft_parents=self.draft_parents,
            output_counts=self.sampling.output_counts,
        )

    def slots(self, lines: Tensor, places: Tensor, page_size: int) -> Tensor:
        """Slots of logical positions `places` of `lines`, broadcast against each other."""
        pages = self.page_table[lines, places.clamp_min(0) // page_size]
        return pages * page_size + places % page_size

    def pending(self, lines: Tensor) -> DraftTree:
        """The drafts that wait for verification on `lines` [S]."""
        return DraftTree(self.draft_tokens[lines], self.draft_parents[lines])

    def keep_draft(self, lines: Tensor, tree: DraftTree) -> None:
        """Store new drafts; what `tree` leaves out is cleared."""
        left_out = (0, self.draft_tokens.shape[1] - tree.nodes)
        self.draft_tokens[lines] = F.pad(tree.tokens, left_out, value=-1)
        self.draft_parents[lines] = F.pad(tree.parents, left_out)
