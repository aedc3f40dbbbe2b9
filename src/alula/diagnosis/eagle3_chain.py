"""The chain of gates of EAGLE-3 in other engines: what their kernels and libraries need."""

from __future__ import annotations

from collections.abc import Iterator

from alula.diagnosis.component_gates import device_code_gates
from alula.diagnosis.scene import CLOSED, OPEN, UNKNOWN, Scene
from alula.diagnosis.shared_gates import is_installed
from alula.machine.capability import Capability, Loading
from alula.machine.gate import Gate, Layer
from alula.machine.library import Library
from alula.machine.linkage import Missing

_MODULES = {
    "torch": "torch",
    "sgl-kernel": "sgl_kernel",
    "sglang-kernel": "sgl_kernel",
    "vllm": "vllm",
}
"""The packages whose libraries an engine needs, and what each is imported as."""


def eagle3(scene: Scene) -> Iterator[Gate]:
    """Linkage and images of the engine, and the compiler of its Triton kernels."""
    yield is_installed(scene, "sglang", "vllm")
    for name in _MODULES:
        component = scene.software.component(name)
        if component is None:
            continue
        lacking = [each for each in component.missing if not each.is_plugin]
        yield scene.gate(
            name,
            Layer.LINKAGE,
            "its libraries find their sonames and symbols",
            f"{len(lacking)} of its libraries do not" if lacking else "they do",
            CLOSED if lacking else OPEN,
            _lacked(lacking[0]) if lacking else f"symbols of {name}",
            probe=f"import {_MODULES[name]}",
        )
        if scene.gpu is not None:
            yield from _images(scene, name)
    yield from _triton(scene)


def _lacked(missing: Missing) -> str:
    names = (*missing.torch_symbols, *missing.nccl_symbols, *missing.sonames)
    return f"{missing.library} asks for {names[0]}"


def _images(scene: Scene, name: str) -> Iterator[Gate]:
    """The libraries of a component that have nothing for this GPU, or one gate that is open."""
    component = scene.software.component(name)
    if component is None or scene.gpu is None:
        return
    held = component.device_code()
    closed = [
        gate
        for library in held
        for gate in device_code_gates(scene.machine, component, library, scene.gpu)
    ]
    other = scene.installed("flashinfer-python", "triton")
    for gate in closed:
        # Attention libraries stand beside each other: an engine can be told to use another one.
        spared = bool(other) and "flash" in gate.feature
        yield scene.gate(
            name,
            gate.layer,
            f"{gate.predicate}{', or another attention backend' if spared else ''}",
            f"{gate.feature}: {gate.observed}{f'; {other} does without' if spared else ''}",
            OPEN if spared else gate.verdict,
            gate.evidence,
            gate.opened_in,
        )
    if held and not closed:
        yield _open_images(scene, name, scene.gpu, held)


def _open_images(scene: Scene, name: str, gpu: Capability, held: tuple[Library, ...]) -> Gate:
    """The gate of a component of which every library has something for a GPU."""
    isa = scene.machine.driver.isa()
    unsure = [each for each in held if each.loading(gpu, isa) is Loading.PTX_UNKNOWN]
    return scene.gate(
        name,
        Layer.DEVICE_CODE,
        f"images for {gpu}",
        f"{len(unsure)} of {len(held)} libraries have PTX alone, and the driver is not known"
        if unsure
        else f"in each of {len(held)} libraries",
        UNKNOWN if unsure else OPEN,
        f"image: {(unsure or held)[0].path}",
        probe=f"kernel {_MODULES[name]} on {gpu}",
    )


def _triton(scene: Scene) -> Iterator[Gate]:
    newer = scene.software.jit("Triton from 10.0 on")
    jit = newer if newer and scene.gpu and scene.gpu.major >= 10 else scene.software.jit("Triton")
    if jit is None or jit.toolkit is None or scene.gpu is None:
        return
    suffix = "a" if scene.gpu.major >= 9 else ""
    yield scene.gate(
        "triton",
        Layer.TOOLKIT,
        f"its ptxas knows sm_{scene.gpu.arch}{suffix}",
        f"ptxas {jit.toolkit.version}: {jit.because}",
        scene.whether(jit.toolkit.knows(scene.gpu, suffix)),
        f"image: {jit.toolkit.path}",
        "triton 3.6, or TRITON_PTXAS_PATH set to a newer one",
        probe=f"kernel triton on {scene.gpu}",
    )
