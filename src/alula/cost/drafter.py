"""What an EAGLE-3 drafter must do: one decoder layer of its own and a head over fewer tokens.

EAGLE-3, arXiv 2503.01840: three hidden vectors of the target are joined by one matrix, once per
round; each draft step runs a layer whose attention reads a token's embedding beside a feature.
"""

from __future__ import annotations

from dataclasses import dataclass

from alula.cost.layout import Layout
from alula.cost.shape import Component, GroupedAttention, LatentAttention, ModelShape
from alula.cost.work import ACTIVATION_BYTES, Collective, Load, Work

_DRAFT_VOCAB = 32_000
_BYTES = 2
# Embedding, two norms, their joining, qkv, rope, KV write, attention (2), o, norm, MLP (3), norm,
# head, softmax, top-k, vocabulary map, bookkeeping.
_STEP_KERNELS = 20
_STEP_EXCHANGES = 4  # embedding, attention, MLP, logits
_TAPS = 3


@dataclass(frozen=True)
class DrafterShape:
    """Sizes of a drafter, in bf16, spread over the ranks of the target."""

    hidden: int
    width: int
    attention: GroupedAttention
    vocab: int

    @property
    def joint_weights(self) -> int:
        """Of the matrix that joins the target's features."""
        return _TAPS * self.hidden * self.hidden

    @property
    def step_weights(self) -> int:
        """Read by one draft step: the layer and the head."""
        heads = self.attention
        queries, pairs = heads.heads * heads.head_dim, 2 * heads.kv_heads * heads.head_dim
        attention = 2 * self.hidden * (queries + pairs) + queries * self.hidden
        return attention + 3 * self.hidden * self.width + self.vocab * self.hidden


def usual_drafter(target: ModelShape) -> DrafterShape:
    """As public drafters are made: as wide as the target, plain attention, 32,000 tokens.

    AQ-MedAI/Kimi-K25-eagle3 has 64 heads of 128 with as many key-value heads and an MLP of 18432.
    """
    attention = target.attention
    if isinstance(attention, LatentAttention):
        attention = GroupedAttention(attention.heads, attention.heads, 128)
    vocab = min(_DRAFT_VOCAB, target.vocab)
    return DrafterShape(target.hidden, target.dense_width, attention, vocab)


def joint_work(drafter: DrafterShape, layout: Layout, load: Load) -> Work:
    """Joining the features of the accepted rows, once per round."""
    weights = drafter.joint_weights / layout.ranks
    return Work(Component.DRAFTER, _BYTES * weights, 2.0 * load.all_rows * weights, 1.0)


def step_work(drafter: DrafterShape, layout: Layout, load: Load) -> Work:
    """One draft step for the rows of `load`."""
    weights = drafter.step_weights / layout.ranks
    keys = load.batch * (load.context + load.rows)
    pair_bytes = drafter.attention.kv_elements * ACTIVATION_BYTES / layout.ranks
    size = load.all_rows * drafter.hidden * ACTIVATION_BYTES
    exchanges = (Collective("all-reduce", size, _STEP_EXCHANGES),) if layout.ranks > 1 else ()
    return Work(
        Component.DRAFTER,
        _BYTES * weights + keys * pair_bytes,
        2.0 * load.all_rows * weights,
        _STEP_KERNELS * layout.launch_share,
        exchanges,
    )
