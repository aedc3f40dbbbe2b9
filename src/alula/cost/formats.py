"""How weights are stored: bytes for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from alula.errors import UsageError


class Format(NamedTuple):
    """How weights are stored."""

    name: str
    bytes_per_weight: float


FORMATS = {
    form.name: form
    for form in (
        Format("fp32", 4.0),
        Format("bf16", 2.0),
        Format("fp8", 1.0 + 4 / 128**2),  # one fp32 scale for each block of 128 × 128
        Format("int8", 1.0),
        Format("nvfp4", 0.5 + 1 / 16),  # one fp8 scale for each 16 weights
        Format("int4-g32", 0.5 + 2 / 32),  # one bf16 scale for each 32 weights
        Format("int4-g32-zeros", 0.5 + 4 / 32),  # a zero point beside each scale
        Format("int4-g128", 0.5 + 2 / 128),
    )
}
BF16 = FORMATS["bf16"]


def format_named(name: str) -> Format:
    """A weight format. Raises UsageError, listing what exists, for an unknown one."""
    if name not in FORMATS:
        raise UsageError(
            f"unknown weight format {name!r}",
            f"alula prices {', '.join(FORMATS)}",
            "name one of these",
        )
    return FORMATS[name]


@dataclass(frozen=True)
class Formats:
    """The weight format of each part; `kv_bytes` is that of one key or value element."""

    attention: Format = BF16
    dense: Format = BF16
    experts: Format = BF16
    shared: Format = BF16
    head: Format = BF16
    embedding: Format = BF16
    kv_bytes: float = 2.0

    @classmethod
    def of(cls, parts: Mapping[str, Format], otherwise: Format = BF16) -> Formats:
        """From the format of each named part, all others being alike."""
        return cls(
            attention=parts.get("attention", otherwise),
            dense=parts.get("dense", otherwise),
            experts=parts.get("experts", otherwise),
            shared=parts.get("shared", otherwise),
            head=parts.get("head", otherwise),
            embedding=parts.get("embedding", otherwise),
        )


PLAIN = Formats()
