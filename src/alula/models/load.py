"""One call from a model's name to a decoder ready to run, its tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from alula.errors import MachineError, ModelError, UsageError
from alula.models import dequantised, precision
from alula.models.config import read_json
from alula.models.decoder import Decoder, read_decoder
from alula.models.families import expected_tensors
from alula.models.gguf_file import GgufWeights
from alula.models.placement import Placement
from alula.models.progress import Progress, silent
from alula.models.safetensors_file import open_folder
from alula.models.source import LocalModel, resolve
from alula.models.weights import WeightSource, check
from alula.ops.memory import memory_for
from alula.shapes import gguf, huggingface
from alula.shapes.decoder import DecoderShape
from alula.text.chat_template import ChatTemplate
from alula.text.tokenizer import Tokenizer

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what was decided on the way, a line each."""

    decoder: Decoder
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    source: LocalModel
    notes: list[str]


class _Checkpoint(NamedTuple):
    shape: DecoderShape
    weights: WeightSource
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


def load(
    name: str,
    device: str | torch.device = "cpu",
    dtype: Literal["auto"] | str | torch.dtype = "auto",
    progress: Progress = silent,
) -> LoadedModel:
    """Load the model that `name` stands for (see `source.resolve`) onto a device.

    `dtype` "auto": on a GPU the checkpoint's own 16-bit dtype, else bfloat16; on the CPU
    bfloat16 where the processor multiplies it itself, else float32.

    Raises UsageError for a device or dtype alula does not know, ModelError for a model that is
    missing, damaged or foreign, ResourceError where it does not fit in memory.
    """
    target, wanted = _device(device), _dtype(dtype, torch.device(device))
    source = resolve(name, progress)
    notes: list[str] = []
    checkpoint = _open(source, progress, notes)
    chosen = wanted or _automatic_dtype(checkpoint, target, notes)
    decoder = _read(checkpoint, Placement(target, chosen), name, progress)
    notes += precision.invariance_notes(decoder.weights())
    return LoadedModel(decoder, checkpoint.tokenizer, checkpoint.chat_template, source, notes)


def _open(source: LocalModel, progress: Progress, notes: list[str]) -> _Checkpoint:
    return _open_folder(source) if source.kind == "folder" else _open_gguf(source, progress, notes)


def _open_folder(source: LocalModel) -> _Checkpoint:
    generation = source.path / "generation_config.json"
    shape = huggingface.decoder_shape(
        read_json(source.path / "config.json"),
        read_json(generation) if generation.is_file() else None,
    )
    weights = open_folder(source.path)
    _check(weights, shape)
    tokenizer, template = Tokenizer.from_folder(source.path), ChatTemplate.from_folder(source.path)
    return _Checkpoint(shape, weights, tokenizer, template)


def _open_gguf(source: LocalModel, progress: Progress, notes: list[str]) -> _Checkpoint:
    """From the weights kept at an earlier start, else from the file, which are then kept."""
    key = source.sha256 or dequantised.fingerprint(source.path)
    if (kept := dequantised.find(key, notes)) is not None:
        return _checkpoint(kept.metadata, kept.weights, lambda: kept.weights)
    opened = GgufWeights(source.path)
    return _checkpoint(
        opened.metadata, opened, lambda: dequantised.keep(key, opened, progress, notes)
    )


def _checkpoint(
    metadata: Mapping[str, Any], weights: WeightSource, final: Callable[[], WeightSource]
) -> _Checkpoint:
    """`final` is called once all is known to fit, and gives the weights to read from."""
    shape = gguf.decoder_shape(metadata)
    _check(weights, shape)
    tokenizer, template = Tokenizer.from_gguf(metadata), ChatTemplate.from_gguf(metadata)
    return _Checkpoint(shape, final(), tokenizer, template)


def _check(weights: WeightSource, shape: DecoderShape) -> None:
    """Refuse weights that are not those of `shape`, before a damaged number asks for a table of
    layers beyond all memory.
    """
    if shape.layers > (present := len(weights.names())):
        raise ModelError(
            f"the weights do not fit the configuration: it has {shape.layers} layers",
            f"there are {present} tensors in all",
            "use the model as its maker published it",
        )
    check(weights, expected_tensors(shape))


def _read(checkpoint: _Checkpoint, placement: Placement, name: str, progress: Progress) -> Decoder:
    fix = "choose a smaller model, a 16-bit --dtype, or a device with more memory"
    with memory_for(f"the weights of {name}", placement.device, fix):
        return read_decoder(checkpoint.shape, checkpoint.weights, placement, progress)


def _device(device: str | torch.device) -> torch.device:
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise UsageError(
            f"there is no device {device!r}", "alula runs on cpu and cuda", "use one of these"
        ) from error
    if target.type not in ("cpu", "cuda"):
        raise UsageError(
            f"alula does not run on {target.type!r}", "it runs on cpu and cuda", "use one of these"
        )
    if target.type == "cuda" and not torch.cuda.is_available():
        raise MachineError(
            "there is no CUDA device",
            f"torch {torch.__version__} sees none",
            "use --device cpu, or install a CUDA build of torch and the driver",
        )
    return target


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | None:
    """The dtype asked for, None for "auto"."""
    if dtype == "auto":
        return None
    chosen = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if chosen not in _DTYPES.values():
        raise UsageError(
            f"alula does not run in dtype {dtype!r}",
            f"it runs in {', '.join(_DTYPES)}",
            "use one of these, or auto",
        )
    if chosen == torch.float16 and device.type == "cpu":
        raise UsageError(
            "alula does not run float16 on the CPU",
            "few CPUs compute in it",
            "use float32, bfloat16 or auto",
        )
    return chosen


def _automatic_dtype(
    checkpoint: _Checkpoint, device: torch.device, notes: list[str]
) -> torch.dtype:
    if device.type == "cpu":
        found = precision.choose(checkpoint.shape, checkpoint.weights)
        notes.append(found.explain())
        return found.dtype
    own = _DTYPES[checkpoint.shape.dtype]
    chosen = own if own.itemsize == 2 else torch.bfloat16
    notes.append(
        f"weights in {str(chosen).removeprefix('torch.')} (the checkpoint holds "
        f"{checkpoint.shape.dtype}); override with dtype= or --dtype"
    )
    return chosen
