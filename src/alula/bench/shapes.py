"""The shapes that are timed with random weights, and the matrices they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from alula.bench.random_weights import LLAMA_8B, SMOLLM2
from alula.errors import UsageError
from alula.models.config import read_json
from alula.shapes import gguf, huggingface
from alula.shapes.decoder import DecoderShape

_USUAL_DRAFT_VOCABULARY = 32000


class Subject(NamedTuple):
    """A decoder's shape under a name, and the vocabulary its drafter would have."""

    name: str
    shape: DecoderShape
    draft_vocabulary: int


NAMED = {
    "llama-8b": Subject("llama-8b", LLAMA_8B, _USUAL_DRAFT_VOCABULARY),
    "smollm2": Subject("smollm2", SMOLLM2, 8192),
}


class Matrix(NamedTuple):
    """A weight [outputs, inner]."""

    name: str
    outputs: int
    inner: int
    fp32: bool = False
    """Its sums are left in fp32."""


def subject(text: str) -> Subject:
    """What `--shape` names: llama-8b, smollm2, or a config.json, its folder, or a GGUF file.

    Raises UsageError for a name that is none of these, ModelError for a shape alula does not run.
    """
    if text in NAMED:
        return NAMED[text]
    path = Path(text).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        from alula.models.gguf_file import GgufWeights

        shape = gguf.decoder_shape(GgufWeights(path).metadata)
    else:
        config = path / "config.json" if path.is_dir() else path
        if not config.is_file():
            raise UsageError(
                f"there is no shape {text!r}",
                f"a shape is {', '.join(NAMED)}, a config.json, its folder, or a .gguf file",
                "write for example --shape llama-8b",
            )
        shape = huggingface.decoder_shape(read_json(config))
    return Subject(path.stem, shape, min(shape.vocab_size, _USUAL_DRAFT_VOCABULARY))


def matrices(shape: DecoderShape) -> list[Matrix]:
    """The weights that a decoder's linears multiply by, each kind once."""
    h, f = shape.hidden_size, shape.intermediate_size
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [
        Matrix("qkv", q + 2 * kv, h),
        Matrix("out", h, q),
        Matrix("gate up", 2 * f, h),
        Matrix("down", h, f),
        Matrix("head", shape.vocab_size, h, fp32=True),
    ]


def drafter_matrices(subject: Subject) -> list[Matrix]:
    """Those of an EAGLE-3 drafter that its target has no matrix of the same size for."""
    shape = subject.shape
    h, kv = shape.hidden_size, shape.kv_heads * shape.head_dim
    drafter = [
        Matrix("drafter fc", h, 3 * h),
        Matrix("drafter q", shape.heads * shape.head_dim, 2 * h),
        Matrix("drafter kv", 2 * kv, 2 * h),
        Matrix("drafter head", subject.draft_vocabulary, h, fp32=True),
    ]
    known = {(matrix.outputs, matrix.inner) for matrix in matrices(shape)}
    return [matrix for matrix in drafter if (matrix.outputs, matrix.inner) not in known]
