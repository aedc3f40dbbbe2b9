"""The reader against NVIDIA's own tool, on what nvcc builds.

Needs a host compiler, and nvcc and cuobjdump on PATH, under CUDA_HOME or from the wheels
nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime and nvidia-cuda-cuobjdump.
ALULA_CUDA_LIBRARIES names real libraries to be compared too, with colons between them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from alula.machine.elf import ElfFile
from alula.machine.fatbin import DeviceCode, Image, read_device_code
from alula.machine.source import FileSource
from alula.machine.target import Kind

_KERNELS = """
__device__ float doubled(float x);
__global__ void first(float *x) { x[threadIdx.x] = doubled(x[threadIdx.x]); }
__device__ float doubled(float x) { return 2.f * x; }
template <int N> __global__ void many(float *x) {
  float s = 0;
  #pragma unroll
  for (int i = 0; i < N; ++i) s += __sinf(x[i]) * __cosf(s);
  x[threadIdx.x] = s;
}
void launch(float *x) { first<<<1, 32>>>(x); many<256><<<1, 32>>>(x); }
"""

_LISTED = re.compile(r"^(ELF|PTX) file +\d+: .*\.(sm_\d+[af]?)\.(?:cubin|ptx)$", re.MULTILINE)


def tool(name: str) -> str:
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME"),) if home]
    homes += [home for entry in sys.path for home in Path(entry).glob("nvidia/cu*")]
    folders = [str(home / "bin") for home in homes] + [os.environ["PATH"]]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def built(folder: Path, flags: str) -> Path:
    nvcc, _ = tool("nvcc"), tool("cuobjdump")
    source, library = folder / "k.cu", folder / "k.so"
    source.write_text(_KERNELS)
    command = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", *flags.split()]
    done = subprocess.run([*command, "-o", library, source], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this nvcc does not build it: {done.stderr.strip()[:200]}")
    return library


def read(path: Path) -> DeviceCode:
    with FileSource(path) as source:
        return read_device_code(source, ElfFile(source))


def as_listed(image: Image) -> tuple[str, str]:
    # cuobjdump leaves the f of a family's cubin away, and calls PTX by its sm.
    target = image.target
    suffix = "" if target.suffix == "f" else target.suffix
    return ("ELF" if target.kind is Kind.CUBIN else "PTX", f"sm_{target.arch}{suffix}")


def listed_by_cuobjdump(path: Path) -> Counter[tuple[str, str]]:
    command = [tool("cuobjdump"), "-all", "--list-elf", "--list-ptx", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = [(kind, arch.removesuffix("f")) for kind, arch in _LISTED.findall(done.stdout)]
    return Counter(found)


def check_against_cuobjdump(path: Path) -> DeviceCode:
    code = read(path)
    assert code.unknown == ()
    assert Counter(map(as_listed, loadable(code))) == listed_by_cuobjdump(path)
    return code


def loadable(code: DeviceCode) -> list[Image]:
    return [image for image in code.images if image.target.kind is not Kind.LTO]


_PLAIN = "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90"
_PTX = "-gencode arch=compute_120,code=compute_120"
_SUFFIXED = "-gencode arch=compute_90a,code=sm_90a -gencode arch=compute_120f,code=sm_120f"


@pytest.mark.parametrize(
    ("flags", "targets"),
    [
        (f"{_PLAIN} {_PTX}", {"sm_80", "sm_90", "compute_120"}),
        (f"{_SUFFIXED} -compress-mode=speed", {"sm_90a", "sm_120f"}),
        (f"{_PLAIN} -dc --compile", {"sm_80", "sm_90"}),
    ],
)
def test_reader_agrees_with_cuobjdump(tmp_path: Path, flags: str, targets: set[str]) -> None:
    code = check_against_cuobjdump(built(tmp_path, flags))
    assert {str(image.target).partition("@")[0] for image in code.images} == targets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "targets"),
    [
        (_PTX, {"compute_120"}),
        ("-gencode arch=compute_100f,code=[sm_100f,compute_100f]", {"sm_100f", "compute_100f"}),
        ("-gencode arch=compute_90a,code=[sm_90a,compute_90a]", {"sm_90a", "compute_90a"}),
        ("-dc --compile -gencode arch=compute_90,code=lto_90", {"lto_90"}),
        (f"{_PLAIN} -rdc=true --compile", {"sm_80", "sm_90"}),
        (f"{_PLAIN} -Xptxas -O1,--maxrregcount=40,--verbose -lineinfo", {"sm_80", "sm_90"}),
        (f"{_PLAIN} {_PTX} -no-compress", {"sm_80", "sm_90", "compute_120"}),
        (f"{_PLAIN} {_PTX} -compress-mode=none", {"sm_80", "sm_90", "compute_120"}),
        (f"{_PLAIN} {_PTX} -compress-mode=size", {"sm_80", "sm_90", "compute_120"}),
        (f"{_PLAIN} {_PTX} -compress-mode=balance", {"sm_80", "sm_90", "compute_120"}),
        (f"{_PLAIN} {_PTX} -compress-mode=default", {"sm_80", "sm_90", "compute_120"}),
    ],
)
def test_reader_agrees_on_every_way_to_build(tmp_path: Path, flags: str, targets: set[str]) -> None:
    code = check_against_cuobjdump(built(tmp_path, flags))
    assert {str(image.target).partition("@")[0] for image in code.images} == targets


@pytest.mark.slow
@pytest.mark.parametrize("path", os.environ.get("ALULA_CUDA_LIBRARIES", "").split(":"))
def test_reader_agrees_on_a_real_library(path: str) -> None:
    if not path:
        pytest.skip("ALULA_CUDA_LIBRARIES names none")
    assert check_against_cuobjdump(Path(path)).images
