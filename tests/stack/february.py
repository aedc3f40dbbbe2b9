"""February 2026 on loopback: eight indexes with the packages and the warts of that month.

Names, versions, pins and upload times are those of the published wheels; what is inside is small
and written by the test, with the device code, sonames, symbols and gates that were measured there.
sglang's requirements are those of its 0.5.9 wheel.
"""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement

from elf_files import write_container, write_elf, write_image, write_library
from engines_environment import install_flashinfer, install_sglang
from environments import make_environment
from loopback_index import Made, Site, make_wheel

_LINUX = "manylinux_2_28_x86_64"
_TORCH_TAG = f"cp312-cp312-{_LINUX}"
_ABI3 = "cp310-abi3-manylinux2014_x86_64"
CHECK_IMPLEMENTATION = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
_EMPTY = "_ZN2at10empty_likeERKNS_6TensorE"

HAND_MADE = """
model = "kimi-k2.5"
opens = ["flashinfer-allreduce-fusion", "torch-symm-mem"]

[[decision]]
what = "toolkit 13.0, not 13.1"
toolkit = "13.0"

[[decision]]
what = "sgl-kernel 0.3.21+cu130, prebuilt"
packages = { sgl-kernel = "0.3.21+cu130" }

[[decision]]
what = "FlashInfer 0.6.4, its jit-cache from FlashInfer's index"
packages = { flashinfer-python = "0.6.4", flashinfer-jit-cache = "0.6.4+cu130" }

[[decision]]
what = "PyTorch nightly 2.11"
packages = { torch = "2.11.0.dev20260219+cu130" }
index = "pytorch-nightly-cu130"
because = "there is no stable PyTorch for CUDA 13"

[[decision]]
what = "SGLang 0.5.9"
packages = { sglang = "0.5.9" }

[[decision]]
what = "nothing from source"
from_source = false
"""


def put_february(site: Site, folder: Path) -> list[str]:
    """Fill the server; what is given back are the options that name the indexes."""
    site.without_ranges = ("/releases/flashinfer",)
    site.put_json("/pypi/simple/", _pypi(folder))
    site.put_pytorch("/whl/cu128/", _torch_family("cu128"))
    site.put_pytorch("/whl/cu130/", _torch_family("cu130"))
    site.put_pytorch("/whl/nightly/cu130/", [_nightly()], hashed=False)
    kernels = [_sgl_kernel("0.3.20+cu130", "13"), _sgl_kernel("0.3.21+cu130", "13")]
    old = {kernels[1].filename: [f"{n}" * 64 for n in range(1, 5)]}
    site.put_releases("/sgl/cu130/", kernels, old)
    for cuda in ("cu128", "cu129", "cu130"):
        caches = [_jit_cache(version, cuda) for version in ("0.6.3", "0.6.4")]
        site.put_releases(f"/flashinfer/{cuda}/", caches)
    paths = {
        "pypi": "/pypi/simple/",
        "pytorch-cu128": "/whl/cu128/",
        "pytorch-cu130": "/whl/cu130/",
        "pytorch-nightly-cu130": "/whl/nightly/cu130/",
        "sgl-cu130": "/sgl/cu130/",
        "flashinfer-cu128": "/flashinfer/cu128/",
        "flashinfer-cu129": "/flashinfer/cu129/",
        "flashinfer-cu130": "/flashinfer/cu130/",
    }
    return [word for n, path in paths.items() for word in ("--index", f"{n}={site.url}{path}")]


def _library(*archs: str, needed: tuple[str, ...] = (), **more: tuple[str, ...]) -> bytes:
    images = [write_image(int(arch.rstrip("af")), arch.lstrip("0123456789")) for arch in archs]
    return write_library(*([write_container(*images)] if images else []), needed=needed, **more)


def _torch(version: str, major: str, requires: list[str], symbols: tuple[str, ...]) -> Made:
    cudart = f"libcudart.so.{major}"
    archs = ("75", "80", "86", "90", "100", "120") if major == "13" else ("80", "90", "120")
    files = {
        "torch/lib/libc10.so": _library(soname="libc10.so"),  # type: ignore[arg-type]
        "torch/lib/libc10_cuda.so": _library(needed=(cudart,), defined=symbols),
        "torch/lib/libtorch.so": _library(),
        "torch/lib/libtorch_cpu.so": _library(defined=(_EMPTY,)),
        "torch/lib/libtorch_cuda.so": _library(
            *archs,
            needed=("libc10_cuda.so", cudart, "libnccl.so.2", "libcudnn.so.9", "libcuda.so.1"),
            undefined=("ncclAllReduce",),
        ),
    }
    return make_wheel("torch", version, requires, files, _TORCH_TAG)


_SYMBOLS = {"2.9.1": (CHECK_IMPLEMENTATION,), "2.10.0": ("_ZN3c104cuda5otherEv",)}
_TRITON = {"2.9.1": "3.5.1", "2.10.0": "3.6.0"}


def _cu12(version: str, label: str = "") -> Made:
    requires = ["nvidia-cuda-runtime-cu12==12.8.90", "nvidia-cudnn-cu12==9.10.2.21"]
    requires += ["nvidia-nccl-cu12==2.27.5", f"triton=={_TRITON[version]}", "setuptools"]
    return _torch(f"{version}{label}", "12", requires, _SYMBOLS[version])


def _cu13(version: str) -> Made:
    requires = ["nvidia-cuda-runtime==13.0.96", "nvidia-cudnn-cu13==9.13.0.50"]
    requires += ["nvidia-nccl-cu13==2.27.7", f"triton=={_TRITON[version]}", "setuptools"]
    requires += ["cuda-bindings==12.9.4"] if version == "2.10.0" else []
    return _torch(f"{version}+cu130", "13", requires, _SYMBOLS[version])


def _nightly() -> Made:
    requires = ["nvidia-cuda-runtime==13.0.96", "nvidia-nccl-cu13==2.28.9"]
    requires += ["nvidia-cudnn-cu13==9.15.1.9", "triton==3.6.0", "cuda-bindings>=13"]
    return _torch("2.11.0.dev20260219+cu130", "13", requires, _SYMBOLS["2.10.0"])


def _torch_family(cuda: str) -> list[Made]:
    torches = [_cu12("2.9.1", "+cu128"), _cu12("2.10.0", "+cu128")]
    if cuda == "cu130":
        torches = [_cu13("2.9.1"), _cu13("2.10.0")]
    return [*torches, *_beside_torch(f"+{cuda}")]


def _beside_torch(label: str = "") -> list[Made]:
    return [
        make_wheel(
            name,
            f"{version}{label}",
            [f"torch=={torch}"],
            {f"{name}/_C.so": _library(needed=("libtorch.so",), undefined=(_EMPTY,))},
            _TORCH_TAG,
        )
        for name, version, torch in (
            ("torchvision", "0.24.1", "2.9.1"),
            ("torchvision", "0.25.0", "2.10.0"),
            ("torchaudio", "2.9.1", "2.9.1"),
            ("torchaudio", "2.10.0", "2.10.0"),
        )
    ]


def _sgl_kernel(version: str, major: str) -> Made:
    needed = ("libtorch.so", "libc10_cuda.so", f"libcudart.so.{major}", "libnuma.so.1")
    files = {
        "sgl_kernel/sm100/common_ops.abi3.so": _library(
            *("80", "89", "90a", "100a", "120a"),
            needed=needed,
            undefined=(CHECK_IMPLEMENTATION, _EMPTY),
        ),
        "sgl_kernel/flash_ops.abi3.so": _library("80", "90a", needed=needed),
    }
    inner = version.partition("+")[0]
    return make_wheel("sgl-kernel", version, (), files, _ABI3, inner)


def _jit_cache(version: str, cuda: str) -> Made:
    arch = "120f" if cuda == "cu130" else "120a"
    library = _library("90a", arch, needed=(f"libcudart.so.{cuda[2:4]}",))
    files = {"flashinfer_jit_cache/jit_cache/norm/norm.so": library}
    tag = f"cp39-abi3-{_LINUX}"
    return make_wheel("flashinfer-jit-cache", f"{version}+{cuda}", (), files, tag)


def _packed(folder: Path) -> dict[str, bytes]:
    """The files of an installed package, without its records."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".dist-info" not in path.as_posix()
    }


def _flashinfer(folder: Path, version: str) -> Made:
    site = make_environment(folder / f"flashinfer-{version}")
    install_flashinfer(site, version)
    requires = ["apache-tvm-ffi<0.2,>=0.1.6", "numpy", "torch", "nvidia-cutlass-dsl>=4.3.4"]
    uploaded = {"0.6.3": "2026-02-06T00:28:21Z", "0.6.4": "2026-02-19T07:33:34Z"}[version]
    return make_wheel("flashinfer-python", version, requires, _packed(site), uploaded=uploaded)


_SERVER_ARGS = """class ServerArgs:
    def check_server_args(self):
        self.check_torch_2_9_1_cudnn_compatibility()

    def check_torch_2_9_1_cudnn_compatibility(self):
        raise RuntimeError
"""
_MODELS = """multimodal_model_archs = [
    "Qwen2VLForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
]
"""


def sglang_requires() -> list[str]:
    text = (Path(__file__).parent / "sglang_0_5_9_requires.txt").read_text("utf-8")
    return [line.removeprefix("Requires-Dist: ") for line in text.splitlines() if line]


def _sglang(folder: Path) -> Made:
    site = make_environment(folder / "sglang")
    install_sglang(site)
    files = {
        **_packed(site),
        "sglang/srt/server_args.py": _SERVER_ARGS,
        "sglang/srt/configs/model_config.py": _MODELS,
    }
    return make_wheel("sglang", "0.5.9", sglang_requires(), files, uploaded="2026-02-23T08:14:13Z")


def _ptxas(version: str) -> bytes:
    release = version.rpartition(".")[0]
    return (
        f"Cuda compilation tools, release {release}, V{version}\0sm_120\0sm_120a\0sm_90a\0".encode()
    )


def _nvidia() -> list[Made]:
    tag = f"py3-none-{_LINUX}"

    def library(name: str, version: str, path: str, *symbols: str) -> Made:
        return make_wheel(name, version, (), {path: _library(defined=symbols)}, tag)

    nccl = "nvidia/nccl/lib/libnccl.so.2"
    cudnn = "nvidia/cudnn/lib/libcudnn.so.9"
    cu13 = [
        *(
            library("nvidia-cuda-runtime", v, "nvidia/cu13/lib/libcudart.so.13")
            for v in ("13.0.96", "13.1.80")
        ),
        *(library("nvidia-nccl-cu13", v, nccl, "ncclAllReduce") for v in ("2.27.7", "2.28.9")),
        *(library("nvidia-cudnn-cu13", v, cudnn) for v in ("9.13.0.50", "9.15.1.9", "9.16.0.29")),
    ]
    cu12 = [
        library("nvidia-cuda-runtime-cu12", "12.8.90", "nvidia/cuda_runtime/lib/libcudart.so.12"),
        library("nvidia-nccl-cu12", "2.27.5", f"{nccl}", "ncclAllReduce", "ncclOld"),
        library("nvidia-cudnn-cu12", "9.10.2.21", cudnn),
    ]
    tools = [
        make_wheel("nvidia-cuda-nvcc", v, (), {"nvidia/cu13/bin/ptxas": _ptxas(v)}, tag)
        for v in ("13.0.88", "13.1.80")
    ]
    return [*cu12, *cu13, *tools]


def _pypi(folder: Path) -> list[Made]:
    cudart12 = ("libcudart.so.12",)
    made = [
        _cu12("2.9.1"),
        _cu12("2.10.0"),
        *_beside_torch(),
        *_nvidia(),
        *(
            make_wheel(
                "triton",
                v,
                ["setuptools"],
                {"triton/backends/nvidia/bin/ptxas": _ptxas("12.8.93")},
                _TORCH_TAG,
            )
            for v in ("3.5.1", "3.6.0")
        ),
        _sgl_kernel("0.3.20", "12"),
        _sgl_kernel("0.3.21", "12"),
        _flashinfer(folder, "0.6.3"),
        _flashinfer(folder, "0.6.4"),
        *(
            make_wheel(
                "flashinfer-cubin",
                v,
                (),
                {"flashinfer_cubin/cubins/a.cubin": write_elf([], 190, 0x6006402)},
            )
            for v in ("0.6.3", "0.6.4")
        ),
        _sglang(folder),
        make_wheel("sglang", "0.5.10", ["torch==2.9.1"], uploaded="2026-04-05T00:00:00Z"),
        make_wheel("cuda-python", "12.9.0", ["cuda-bindings~=12.9.0"]),
        make_wheel("cuda-python", "13.0.3", ["cuda-bindings~=13.0.3"]),
        *(
            make_wheel("cuda-bindings", v, (), {"cuda/x.so": _library()}, _TORCH_TAG)
            for v in ("12.9.4", "13.0.3")
        ),
        make_wheel(
            "torch_memory_saver",
            "0.0.9",
            (),
            {"torch_memory_saver_hook_mode_preload.abi3.so": _library(needed=cudart12)},
            "cp39-abi3-manylinux2014_x86_64",
        ),
        make_wheel(
            "torchao",
            "0.9.0",
            (),
            {"torchao/_C.abi3.so": _library("80", "90", needed=cudart12)},
            f"cp39-abi3-{_LINUX}",
        ),
        make_wheel("numpy", "2.4.2", tag=_TORCH_TAG, requires_python=">=3.11"),
        make_wheel("numpy", "2.4.3", tag=_TORCH_TAG, yanked="broken", requires_python=">=3.11"),
        make_wheel("numpy", "2.9.0", tag="cp313-cp313-" + _LINUX, requires_python=">=3.13"),
        make_wheel("setuptools", "82.0.0"),
        make_wheel("setuptools", "82.0.0", build="1"),
    ]
    return [*made, *_others({wheel.project for wheel in made})]


def _others(have: set[str]) -> list[Made]:
    """Everything else that sglang requires, in a version that it takes."""
    made = []
    for requirement in map(Requirement, sglang_requires()):
        project = requirement.name.lower().replace("_", "-")
        if project in have or (requirement.marker and "extra" in str(requirement.marker)):
            continue
        have.add(project)
        pins = {each.operator: each.version for each in requirement.specifier}
        version = pins.get("==") or pins.get(">=") or "1.0"
        requires = ["numpy"] if project == "apache-tvm-ffi" else []
        if project == "apache-tvm-ffi":
            version = "0.1.9"
        made.append(make_wheel(project, version, requires))
    return made
