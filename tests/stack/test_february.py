"""The case behind the planner: what its owner decided by hand, and what holds together."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from alula.stack.lock import Lock
from asking import Ask, February
from february import CHECK_IMPLEMENTATION

SET = {
    "torch": "2.9.1+cu130",
    "triton": "3.5.1",
    "sgl-kernel": "0.3.21+cu130",
    "flashinfer-python": "0.6.3",
    "flashinfer-cubin": "0.6.3",
    "flashinfer-jit-cache": "0.6.3+cu130",
    "sglang": "0.5.9",
}


def packages(plan: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["version"] for each in plan["lock"]["packages"]}


def checks(plan: dict[str, Any], verdict: str) -> set[str]:
    return {each["check"] for each in plan["checks"] if each["verdict"] == verdict}


def test_the_set_that_held_together(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--want", "sglang==0.5.9", "--json")
    assert told.code == 0
    found = packages(told.json)
    assert found | SET == found
    assert not checks(told.json, "failed")
    assert checks(told.json, "not checked") == {"start-up checks of the model", "disk space"}
    kernel = next(e for e in told.json["lock"]["packages"] if e["name"] == "sgl-kernel")
    assert "/releases/sgl/cu130/" in kernel["url"]
    assert "sm_120a" in kernel["architectures"]


def test_the_toolkit_and_why_it_is_not_the_next_one(february: February, ask: Ask) -> None:
    plan = ask(*february.options, "--want", "sglang==0.5.9", "--json").json
    toolkit = next(each for each in plan["decisions"] if each["what"] == "toolkit")
    assert toolkit["choice"] == "13.0 from wheels"
    assert packages(plan)["nvidia-cuda-nvcc"].startswith("13.0.")
    (rejected,) = toolkit["rejected"]
    assert rejected["choice"] == "13.1"
    assert "libcudart.so.13" in rejected["reason"]


def test_what_lost_against_torch_2_9_1(february: February, ask: Ask) -> None:
    plan = ask(*february.options, "--want", "sglang==0.5.9", "--json").json
    torch = next(each for each in plan["decisions"] if each["what"] == "torch")
    assert torch["rejected"][0]["choice"] == "2.10.0+cu130 of pytorch-cu130"
    assert "sglang 0.5.9 requires torch==2.9.1" in torch["rejected"][0]["reason"]


def test_a_driver_before_580_gets_the_set_for_cuda_12(february: February, ask: Ask) -> None:
    machine = ("--gpu", "12.0x8", "--links", "pcie", "--driver", "570.124.06", "--glibc", "2.35")
    told = ask(*february.options, "--want", "sglang==0.5.9", "--json", machine=machine)
    assert told.code == 0
    assert packages(told.json)["torch"] == "2.9.1+cu128"
    cuda = told.json["decisions"][0]
    assert cuda["choice"] == "cu128"
    assert "CUDA 13 needs driver 580.65.06" in cuda["rejected"][0]["reason"]


def test_the_model_needs_another_cudnn_and_says_so(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--want", "sglang==0.5.9", "--model", "kimi-k2.5", "--json")
    assert told.code == 0
    (override,) = told.json["lock"]["overrides"]
    assert override["package"] == "nvidia-cudnn-cu13"
    assert override["requirement"] == "nvidia-cudnn-cu13>=9.15,<10"
    assert "torch 2.9.1+cu130 requires nvidia-cudnn-cu13==9.13.0.50" in override["pinned_by"]
    assert "server_args.py:5" in override["reason"]
    assert packages(told.json)["nvidia-cudnn-cu13"] == "9.16.0.29"
    assert "start-up checks of the model" in checks(told.json, "passed")


def test_another_model_keeps_torchs_cudnn(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--want", "sglang==0.5.9", "--model", "qwen3-8b", "--json")
    assert told.json["lock"]["overrides"] == []
    assert packages(told.json)["nvidia-cudnn-cu13"] == "9.13.0.50"


@pytest.mark.parametrize(
    ("feature", "opens_with"),
    [
        ("flashinfer-allreduce-fusion", {"flashinfer 0.6.17"}),
        ("torch-symm-mem", {"no release: hardware"}),
    ],
)
def test_what_stays_closed_and_what_would_open_it(
    february: February, ask: Ask, feature: str, opens_with: set[str]
) -> None:
    plan = ask(*february.options, "--want", "sglang==0.5.9", "--json").json
    closed = [each for each in plan["lock"]["stays_closed"] if each["gate"].startswith(feature)]
    assert len(closed) > 1
    assert opens_with <= {each["opens_with"] for each in closed}
    assert not plan["features"][feature]["open"]


def test_a_goal_that_stays_closed_is_not_reached(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--want", "sglang==0.5.9", "--goal", "torch-symm-mem")
    assert told.code == 3
    assert "torch-symm-mem stays closed in it" in told.out.splitlines()[0]


def test_binaries_for_another_cuda_are_risks_by_the_option_that_loads_them(
    february: February, ask: Ask
) -> None:
    risks = ask(*february.options, "--want", "sglang==0.5.9", "--json").json["risks"]
    for option in ("--enable-memory-saver", "--torchao-config"):
        (risk,) = (each for each in risks if each.startswith(option))
        assert "libcudart.so.12" in risk


def test_an_overwritten_release_is_settled_by_its_bytes(february: February, ask: Ask) -> None:
    plan = ask(*february.options, "--want", "sglang==0.5.9", "--json").json
    assert any("5 different hashes" in each for each in plan["odd_in_indexes"])
    kernel = next(e for e in plan["lock"]["packages"] if e["name"] == "sgl-kernel")
    assert kernel["sha256"] not in {f"{n}" * 64 for n in range(1, 5)}


def test_the_plan_made_by_hand(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--check", february.hand_made, "--json")
    assert told.code == 3
    found = {
        (tuple(each["decisions"]), each["words"]) for each in told.json["by_hand"]["contradictions"]
    }

    def said(numbers: tuple[int, ...], *parts: str) -> bool:
        return any(n == numbers and all(part in words for part in parts) for n, words in found)

    assert said((4, 5), "sglang 0.5.9 requires torch==2.9.1")
    assert said((3, 5), "sglang 0.5.9 requires flashinfer_python==0.6.3")
    assert said((4, 5), "requires cuda-bindings>=13", "sglang 0.5.9 requires cuda-python==12.9")
    assert said((2, 4), "sgl-kernel 0.3.21+cu130", CHECK_IMPLEMENTATION)
    assert said((2,), "pip discards it by name", "0.3.21 of pypi", "cu12")
    assert said((4,), "there is no stable PyTorch for CUDA 13", "torch 2.9.1+cu130")
    assert said((3, 5), "flashinfer-allreduce-fusion is hoped for")
    assert said((5,), "torch-symm-mem is hoped for", "no NVSwitch")
    assert said((5,), "does not start kimi-k2.5", "nvidia-cudnn-cu13==9.13.0.50")
    assert told.json["by_hand"]["kept"] == [1, 2, 5, 6]
    assert packages(told.json) | SET == packages(told.json)


def test_the_verdict_on_it_is_the_first_line(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--check", february.hand_made)
    first = told.out.splitlines()[0]
    assert first.startswith("the plan cannot be: ")
    assert first.endswith("between decisions (2), (3), (4) and (5)")


def test_a_sound_plan_made_by_hand_holds(february: February, ask: Ask, tmp_path: Path) -> None:
    sound = tmp_path / "sound.toml"
    sound.write_text(
        '[[decision]]\nwhat = "toolkit"\ntoolkit = "13.0"\n'
        '[[decision]]\nwhat = "engine"\npackages = { sglang = "0.5.9", torch = "2.9.1+cu130" }\n'
        '[[decision]]\nwhat = "kernels"\nby = "address"\n'
        'packages = { sgl-kernel = "0.3.21+cu130" }\n'
    )
    told = ask(*february.options, "--check", sound, "--json")
    assert told.json["by_hand"]["contradictions"] == []
    assert told.code == 0


def test_it_takes_less_than_three_seconds_of_a_processor(february: February, ask: Ask) -> None:
    """Of alula's and uv's together: what else runs on the machine does not count."""

    def spent() -> float:
        both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, both))

    before = spent()
    ask(*february.options, "--want", "sglang==0.5.9", "--json")
    assert spent() - before < 3


def test_what_it_writes_is_taken_by_uv_as_it_is(
    february: February, ask: Ask, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ask(*february.options, "--want", "sglang==0.5.9", "--model", "kimi-k2.5", "--out", out)
    lock = Lock.read(out / "stack.lock.json")
    common = ["--no-cache", "--no-python-downloads", "--color", "never"]
    common += ["--python", sys.executable, "--python-version", "3.12", "--no-build"]
    common += ["--python-platform", "x86_64-manylinux_2_35"]
    compile_project = [find_uv_bin(), "pip", "compile", "pyproject.toml", *common]
    project = subprocess.run(compile_project, cwd=out / "uv", capture_output=True, text=True)
    assert project.returncode == 0, project.stderr
    for wheel in lock.packages:
        assert f"{wheel.name}=={wheel.version}\n" in project.stdout
    install = [find_uv_bin(), "pip", "install", "--dry-run", "--no-deps", "--require-hashes"]
    install += ["--target", tmp_path / "target", "-r", out / "requirements.txt", *common]
    installed = subprocess.run(install, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    assert f"Would install {len(lock.packages)} packages" in installed.stderr
    wanted = (out / "requirements.txt").read_text()
    assert wanted.count("--hash=sha256:") == len(lock.packages)
    for wheel in lock.packages:
        assert f"{wheel.name} @ {wheel.url} --hash=sha256:{wheel.sha256}" in wanted


def test_a_pin_is_broken_by_a_version_that_no_index_has(february: February, ask: Ask) -> None:
    """As where the index of a nightly is down, or has dropped it."""
    pypi = february.options[:2]
    gone = ["--index", "pytorch-nightly-cu130=http://127.0.0.1:1/whl/"]
    told = ask(*pypi, *gone, "--check", february.hand_made, "--json")
    found = [(e["decisions"], e["words"]) for e in told.json["by_hand"]["contradictions"]]
    assert told.code == 3
    pin = "torch 2.11.0.dev20260219+cu130 cannot be with sglang 0.5.9, which requires torch==2.9.1"
    assert ([4, 5], pin) in found


def test_an_index_that_is_down_contradicts_nothing(
    february: February, ask: Ask, tmp_path: Path
) -> None:
    """What it may have is not checked; the exit code tells that from a contradiction."""
    nightly = (
        '[[decision]]\nwhat = "nightly"\nindex = "pytorch-nightly-cu130"\n'
        'packages = { torch = "2.11.0.dev20260219+cu130" }\n'
    )
    engine = '[[decision]]\nwhat = "engine"\npackages = { sglang = "0.5.9" }\n'
    toolkit = '[[decision]]\nwhat = "toolkit"\ntoolkit = "13.0"\n'
    gone = ["--index", "pytorch-nightly-cu130=http://127.0.0.1:1/whl/"]
    made = tmp_path / "plan.toml"
    made.write_text(nightly + engine)
    told = ask(*february.options[:2], *gone, "--check", made, "--json")
    (contradiction,) = told.json["by_hand"]["contradictions"]
    assert "requires torch==2.9.1" in contradiction["words"]  # whatever the index would say
    assert told.code == 3

    made.write_text(nightly + toolkit)
    told = ask(*february.options[:2], *gone, "--check", made, "--json")
    by_hand = told.json["by_hand"]
    assert by_hand["contradictions"] == []
    assert [each["decisions"] for each in by_hand["not_checked"]] == [[1]]
    assert "pytorch-nightly-cu130 is down: it cannot be reached" in told.json["verdict"]
    assert told.code == 6
    shown = ask(*february.options[:2], *gone, "--check", made).out
    assert "(1) nightly: not checked" in shown
    assert "(2) toolkit: kept" in shown


def test_requirements_on_an_index_that_is_down_are_not_checked(
    february: February, ask: Ask, tmp_path: Path
) -> None:
    made = tmp_path / "plan.toml"
    made.write_text(
        '[[decision]]\nwhat = "torch"\npackages = { torch = "2.9.1+cu130" }\n'
        '[[decision]]\nwhat = "toolkit"\ntoolkit = "13.0"\n'
    )
    gone = ["--index", "pypi=http://127.0.0.1:1/simple/", *february.options[2:]]
    told = ask(*gone, "--check", made, "--json")
    by_hand = told.json["by_hand"]
    assert by_hand["contradictions"] == []
    assert any("torch requires of pypi" in each["words"] for each in by_hand["not_checked"])
    assert told.code == 6
