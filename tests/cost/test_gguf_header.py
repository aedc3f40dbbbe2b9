"""Shapes from GGUF headers, and headers that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from alula.cost.reading.gguf_header import read_header
from alula.cost.reading.model import find_model
from alula.cost.shape import GroupedAttention
from alula.errors import ModelError

HIDDEN, WIDTH, VOCAB = 64, 96, 50


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return _write(tmp_path / "tiny.gguf", "llama")


def _write(path: Path, family: str) -> Path:
    writer = gguf.GGUFWriter(path, family)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(2)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_token_list([f"token {n}" for n in range(VOCAB)])
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_bool("some.flag", True)
    for layer in range(2):
        for name, shape in (
            ("attn_q", (HIDDEN, HIDDEN)),
            ("attn_k", (HIDDEN // 2, HIDDEN)),
            ("attn_v", (HIDDEN // 2, HIDDEN)),
            ("attn_output", (HIDDEN, HIDDEN)),
            ("ffn_gate", (WIDTH, HIDDEN)),
            ("ffn_up", (WIDTH, HIDDEN)),
            ("ffn_down", (HIDDEN, WIDTH)),
        ):
            kind = gguf.GGMLQuantizationType.Q8_0
            data = gguf.quants.quantize(np.ones(shape, np.float32), kind)
            writer.add_tensor(f"blk.{layer}.{name}.weight", data, raw_dtype=kind)
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("token_embd.weight", np.ones((VOCAB, HIDDEN), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_sizes_come_from_metadata_and_formats_from_tensors(tiny: Path) -> None:
    shape = find_model(str(tiny))
    assert (shape.hidden, shape.layers, shape.vocab, shape.dense_width) == (HIDDEN, 2, VOCAB, WIDTH)
    assert shape.attention == GroupedAttention(heads=4, kv_heads=2, head_dim=16)
    assert shape.tied_head
    assert shape.formats.dense.name == "Q8_0"
    assert shape.formats.attention.bytes_per_weight == pytest.approx(34 / 32)
    assert shape.formats.embedding.bytes_per_weight == 2
    assert shape.formats.head == shape.formats.embedding


def test_bytes_are_those_of_the_file(tiny: Path) -> None:
    stored = sum(m.stored_bytes for m in find_model(str(tiny)).matrices() if m.name != "norms")
    reader = gguf.GGUFReader(tiny)
    assert stored == sum(int(t.n_bytes) for t in reader.tensors if "norm" not in t.name)


def test_the_reader_agrees_with_the_package(tiny: Path) -> None:
    header, reader = read_header(tiny), gguf.GGUFReader(tiny)
    assert {t.name: t.elements for t in header.tensors} == {
        t.name: int(t.n_elements) for t in reader.tensors
    }
    assert len(header.metadata["tokenizer.ggml.tokens"]) == VOCAB
    assert header.metadata["some.flag"] is True


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="mamba"):
        find_model(str(_write(tmp_path / "other.gguf", "mamba")))


@pytest.mark.parametrize("kept", [0, 3, 10, 24, 100, 700])
def test_a_file_cut_short_is_refused(tiny: Path, kept: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:kept])
    with pytest.raises(ModelError, match="cannot read"):
        find_model(str(tiny))


def test_absurd_counts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "absurd.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))
    with pytest.raises(ModelError, match="names"):
        find_model(str(path))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60))
    with pytest.raises(ModelError, match="cannot read"):
        find_model(str(path))
