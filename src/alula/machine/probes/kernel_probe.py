"""Run one kernel of each component on every visible GPU and hold its numbers against the CPU.

Runs in the examined environment: nothing of alula is imported, one line of JSON at the end.
"""

import importlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS, COLUMNS = 64, 512


def far_off(torch: Any, found: Any, expected: Any, tolerance: float) -> str | None:
    """The largest error relative to the largest value, where it is too large; else None."""
    found = found.float().cpu()
    if not torch.isfinite(found).all():
        return "it holds values that are not finite"
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    return f"it is off by {error:.2g} of the largest value" if error > tolerance else None


def matmul(torch: Any, device: str) -> str | None:
    """torch: a product in bfloat16."""
    a, b = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, ROWS)
    a, b = a.bfloat16(), b.bfloat16()
    return far_off(torch, a.to(device) @ b.to(device), a.float() @ b.float(), 2e-2)


TRITON_SOURCE = """
import triton
import triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)
"""


def triton_add(torch: Any, device: str) -> str | None:
    """triton: an addition, which makes it compile for this GPU."""
    # Triton reads a kernel's source from its file.
    folder = tempfile.mkdtemp()
    Path(folder, "alula_probe_kernel.py").write_text(TRITON_SOURCE)
    sys.path.insert(0, folder)
    add = importlib.import_module("alula_probe_kernel").add

    x, y = torch.randn(1000), torch.randn(1000)
    out = torch.full((1000,), float("nan"), device=device)
    add[(8,)](x.to(device), y.to(device), out, 1000, BLOCK=128)
    return far_off(torch, out, x + y, 1e-6)


def sgl_kernel_rmsnorm(torch: Any, device: str) -> str | None:
    """sgl_kernel: an RMS norm."""
    sgl_kernel = importlib.import_module("sgl_kernel")

    x, weight = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)
    x, weight = x.bfloat16(), weight.bfloat16()
    found = sgl_kernel.rmsnorm(x.to(device), weight.to(device), eps=1e-6)
    wide = x.float()
    expected = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()
    return far_off(torch, found, expected, 2e-2)


def flashinfer_decode(torch: Any, device: str) -> str | None:
    """flashinfer: attention of one query."""
    flashinfer = importlib.import_module("flashinfer")

    q, k, v = torch.randn(8, 128), torch.randn(96, 8, 128), torch.randn(96, 8, 128)
    q, k, v = q.half(), k.half(), v.half()
    found = flashinfer.single_decode_with_kv_cache(q.to(device), k.to(device), v.to(device))
    scores = torch.einsum("hd,khd->hk", q.float(), k.float()) / 128**0.5
    expected = torch.einsum("hk,khd->hd", scores.softmax(-1), v.float())
    return far_off(torch, found, expected, 1e-2)


KERNELS: dict[str, Callable[[Any, str], str | None]] = {
    "torch": matmul,
    "triton": triton_add,
    "sgl_kernel": sgl_kernel_rmsnorm,
    "flashinfer": flashinfer_decode,
}


def main() -> None:
    """Every kernel on every GPU."""
    torch: Any = importlib.import_module("torch")
    findings: list[str] = []
    measured: dict[str, str] = {}
    parts: dict[str, str] = {}
    torch.manual_seed(0)
    for number in range(torch.cuda.device_count()):
        torch.cuda.set_device(number)
        for name, kernel in KERNELS.items():
            if importlib.util.find_spec(name) is None:
                continue
            try:
                wrong = kernel(torch, f"cuda:{number}")
                torch.cuda.synchronize()
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"[:500]
            capability = ".".join(map(str, torch.cuda.get_device_capability(number)))
            parts[f"{name} on {capability} (GPU {number})"] = wrong or ""
            if wrong:
                findings.append(f"{name} on GPU {number}: {wrong}")
            else:
                measured[f"{name} on GPU {number}"] = "agrees with the CPU"
    if not torch.cuda.device_count():
        findings.append("torch sees no GPU")
    print(json.dumps({"findings": findings, "measured": measured, "parts": parts}))


if __name__ == "__main__":
    main()
