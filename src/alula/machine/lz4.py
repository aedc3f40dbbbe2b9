"""Unpacking one LZ4 block, as nvcc writes images with `-compress-mode=speed`.

Own code, since no package of the house has it and a block is simple: see the LZ4 block format
description of the lz4 project. Nothing past the announced size is ever written.
"""

from __future__ import annotations

from alula.machine.source import DamagedError


def unpack(data: bytes, size: int) -> bytes:
    """The `size` bytes of a block; DamagedError where it does not hold them."""
    out = bytearray()
    position, end = 0, len(data)
    while position < end:
        token = data[position]
        position += 1
        literals, position = _length(data, position, token >> 4)
        if position + literals > end or len(out) + literals > size:
            raise DamagedError("an LZ4 block that runs past its end")
        out += data[position : position + literals]
        position += literals
        if position == end:  # the last sequence has no match
            break
        if position + 2 > end:
            raise DamagedError("an LZ4 block that is cut")
        distance = data[position] | data[position + 1] << 8
        match, position = _length(data, position + 2, token & 15)
        _copy(out, distance, match + 4, size)
    if len(out) != size:
        raise DamagedError(f"an LZ4 block of {len(out)} bytes where {size} were announced")
    return bytes(out)


def _length(data: bytes, position: int, length: int) -> tuple[int, int]:
    """A length that goes on in further bytes while they are 255."""
    if length < 15:
        return length, position
    while True:
        if position >= len(data):
            raise DamagedError("an LZ4 block that is cut")
        more = data[position]
        position += 1
        length += more
        if more != 255:
            return length, position


def _copy(out: bytearray, distance: int, length: int, size: int) -> None:
    """Repeat what was written `distance` bytes ago; a match may overlap itself."""
    start = len(out) - distance
    if distance == 0 or start < 0 or len(out) + length > size:
        raise DamagedError("an LZ4 match outside of what was written")
    if distance >= length:
        out += out[start : start + length]
        return
    pattern = bytes(out[start:])
    out += (pattern * (length // distance + 1))[:length]
