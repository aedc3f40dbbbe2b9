"""The variables of an environment: what runs in it compiles with its own toolkit, into its own
caches, and loads nothing of another one.

FlashInfer's cache does not tell the kernels of two toolkits apart (flashinfer#3229), so that one
environment would run, or spoil, what another has compiled.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from alula.machine.environment import environment_at
from alula.machine.linkage import SystemLibraries
from alula.machine.toolkits import find_toolkits
from alula.stack.places import Places
from alula.stack.records import Record

_CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash_attention",
    "QUACK_CACHE_DIR": "quack",
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TRITON_CACHE_DIR": "triton",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "VLLM_CACHE_ROOT": "vllm",
}
"""As torch 2.13, triton 3.5, FlashInfer 0.6.17, vLLM 0.16 and SGLang 0.5.9 read them. SGLang
overwrites DG_JIT_CACHE_DIR with its SGLANG_DG_CACHE_DIR."""
_TOOLKIT = ("CUDA_HOME", "CUDA_PATH")
_PYTHON = ("PYTHONHOME", "PYTHONPATH")
_LIBRARIES = "LD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True)
class Variables:
    """What differs from the shell."""

    set: Mapping[str, str]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    handed_on: Mapping[str, str] = field(default_factory=dict)
    """Of the environment before; the shell's own come first. Their values are not shown."""

    def applied(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of a process in the environment."""
        kept = {name: value for name, value in environ.items() if name not in self.removed}
        return dict(self.handed_on) | kept | dict(self.set)


def variables(places: Places, record: Record, environ: Mapping[str, str]) -> Variables:
    """Of an environment, started from a shell with `environ`.

    One that was adopted keeps toolkit, caches and libraries as its owner has set them.
    """
    binaries = record.path / "bin"
    found = {
        "VIRTUAL_ENV": str(record.path),
        "PATH": os.pathsep.join(filter(None, (str(binaries), environ.get("PATH", "")))),
    }
    if record.baseline:
        return Variables(found, (), ())
    own = found | fixed(places, record)
    removed, notes = list(_left_out(own, environ)), []
    notes += [f"{name}={environ[name]} is left out" for name in removed]
    libraries, others = _libraries(environ)
    if others:
        notes.append(f"{_LIBRARIES} loses {', '.join(others)}: CUDA libraries of another stack")
        removed += [] if libraries else [_LIBRARIES]
        own |= {_LIBRARIES: os.pathsep.join(libraries)} if libraries else {}
    return Variables(own, tuple(removed), tuple(notes), record.variables)


def fixed(places: Places, record: Record) -> dict[str, str]:
    """Those that are the same from whichever shell."""
    found = {name: str(folder) for name, folder in _caches(places, record).items()}
    if home := toolkit_home(record):
        found |= dict.fromkeys(_TOOLKIT, str(home))
    return found


def make_caches(places: Places, record: Record) -> None:
    """Make the folders that run-time compilers keep their kernels in."""
    for folder in _caches(places, record).values():
        folder.mkdir(parents=True, exist_ok=True)


def _caches(places: Places, record: Record) -> dict[str, Path]:
    return {name: places.compiled(record.name) / folder for name, folder in _CACHES.items()}


def toolkit_home(record: Record) -> Path | None:
    """The folder of the toolkit that the lock chose; None where it chose none, or it is absent."""
    if record.lock is None or record.lock.toolkit.kind == "none":
        return None
    toolkit = record.lock.toolkit
    if toolkit.kind == "wheels":
        within = find_toolkits(environment_at(record.path), {}, record.path / "none")
        return Path(within[0].path) if within else None
    usual = [Path.home() / f"cuda-{toolkit.version}", Path(f"/usr/local/cuda-{toolkit.version}")]
    named = [Path(toolkit.path)] if toolkit.path else usual
    return next((home for home in named if home.is_dir()), None)


def write_activation(places: Places, record: Record) -> None:
    """Let the environment's own `activate` set them too, for who uses it by hand."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in fixed(places, record).items()]
    lines += [f"unset {name}" for name in _PYTHON]
    with (record.path / "bin/activate").open("a", encoding="utf-8") as file:
        file.write("\n# What alula stack run sets as well.\n" + "\n".join(lines) + "\n")


def _left_out(own: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str]:
    for name in (*_PYTHON, *_TOOLKIT):
        if environ.get(name) and name not in own:
            yield name


def _libraries(environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The entries of LD_LIBRARY_PATH to keep, and those that hold CUDA's libraries.

    The driver's own is kept: containers hand it in this way.
    """
    value = environ.get(_LIBRARIES, "")
    found = SystemLibraries(library_path=value).overriding()
    others = {str(path.parent) for path in found if not path.name.startswith("libcuda.so")}
    entries = [entry for entry in value.split(os.pathsep) if entry]
    foreign = [entry for entry in entries if str(Path(entry)) in others]
    return [entry for entry in entries if entry not in foreign], foreign
