"""`alula doctor` from outside."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from alula.cli.doctor_verdict import verdicts
from alula.machine.facts import Machine
from alula.machine.records import from_json
from engines_environment import engines
from environments import SITE, set_traps
from running import Alula, Process

_CASE = ("--machine", "8x-rtx-pro-6000", "--driver", "590.48.01")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALULA_HOME", str(tmp_path / "alula-home"))
    return tmp_path / "alula-home"


def test_a_chain_has_owner_file_line_and_release(alula: Alula, tmp_path: Path) -> None:
    engines(tmp_path / "env")
    feature = "flashinfer-allreduce-fusion"
    done = alula("doctor", feature, "--env", str(tmp_path / "env"), *_CASE)
    assert done.code == 1, done.err
    assert "flashinfer/jit/comm.py:3" in done.out
    assert "flashinfer 0.6.17" in done.out
    assert f"{feature}: 4 of " in done.out


def test_the_first_line_is_the_verdict(alula: Alula, tmp_path: Path) -> None:
    engines(tmp_path / "env")
    environment = ("--env", str(tmp_path / "env"), *_CASE)
    gates = json.loads(alula("doctor", "--json", *environment).out)["gates"]
    closed = sum(gate["verdict"] == "closed" for gate in gates)
    first = alula("doctor", *environment).out.splitlines()[0]
    assert first.startswith("8 × NVIDIA RTX PRO 6000 Blackwell Workstation Edition (12.0): ")
    assert f"{closed} gates are closed" in first
    asked = alula("doctor", "eagle3", *environment).out.splitlines()
    assert asked[0].startswith("eagle3: ")


def test_what_is_built_for_a_cpu_is_not_taken_for_sound(alula: Alula, tmp_path: Path) -> None:
    engines(tmp_path / "env")
    report = json.loads(alula("doctor", "--json", "--env", str(tmp_path / "env"), *_CASE).out)
    components = report["software"]["components"]
    assert "built for a CPU" not in verdicts(report)[0]
    components[0] |= {"variant": "cpu", "name": "torch", "version": "2.13.0+cpu"}
    (found,) = verdicts(report | {"gates": []})
    assert "torch 2.13.0+cpu is built for a CPU and can use none; nothing stands in" in found
    components[1] |= {"variant": "cpu", "name": "vision", "version": "1+cpu"}
    (found,) = verdicts(report)
    assert "torch 2.13.0+cpu and vision 1+cpu are built for a CPU" in found


def test_without_a_gpu_the_verdict_says_what_was_and_was_not_checked(
    alula: Alula, tmp_path: Path
) -> None:
    """Not that all is well: what the GPU decides was never looked at."""
    engines(tmp_path / "env")
    report = json.loads(alula("doctor", "--json", "--env", str(tmp_path / "env"), *_CASE).out)
    for gpu in report["machine"]["gpus"]:
        gpu["visible"] = False
    (hidden,) = verdicts(report | {"gates": []})
    assert hidden.startswith("No GPU is visible (8 hidden); by linkage, requirements and driver")
    report["machine"] |= {"gpus": [], "driver": report["machine"]["driver"] | {"version": ""}}
    (found,) = verdicts(report | {"gates": []})
    assert found.startswith("No GPU was found; by linkage and requirements alone nothing stands")
    assert found.endswith("not checked without a GPU: device code, compilers, links and driver")
    closed = {"verdict": "closed", "component": "torch", "layer": "linkage"}
    (broken,) = verdicts(report | {"gates": [closed]})
    assert "1 gate is closed, on 1 of" in broken
    assert "not checked without a GPU" in broken


def test_json_is_a_report_that_can_be_asked_about(alula: Alula, tmp_path: Path) -> None:
    engines(tmp_path / "env")
    done = alula("doctor", "--json", "--env", str(tmp_path / "env"), *_CASE)
    assert done.code == 0
    report: dict[str, Any] = json.loads(done.out)
    assert from_json(Machine, report["machine"]).driver.version == "590.48.01"
    lists = {each["file"]: each["majors"] for each in report["software"]["allow_lists"]}
    assert lists["flashinfer/jit/comm.py"] == [9, 10]
    saved = tmp_path / "report.json"
    saved.write_text(done.out)
    again = alula("doctor", "--json", "--machine", str(saved), "--links", "nvlink")
    asked = json.loads(again.out)["machine"]
    assert (asked["interconnect"], asked["nvswitch"]) == ("nvlink", None)


def test_markdown_is_a_document(alula: Alula, tmp_path: Path) -> None:
    engines(tmp_path / "env")
    out = alula("doctor", "--markdown", "--env", str(tmp_path / "env"), *_CASE).out
    assert out.startswith("## alula doctor ")
    assert "| flashinfer-python | 0.6.4 |" in out


def test_no_code_of_the_environment_runs_and_nothing_is_left(
    process: Process, tmp_path: Path, home: Path
) -> None:
    prefix = tmp_path / "env"
    engines(prefix)
    sprung = set_traps(prefix)
    command, env = process
    env = {**env, "ALULA_HOME": str(home), "PATH": f"{prefix}/bin:{os.environ['PATH']}"}
    env["CUDA_HOME"] = str(prefix)
    before = {path for path in tmp_path.rglob("*") if home not in path.parents and path != home}
    done = subprocess.run(
        [*command, "doctor", "--json", "--env", str(prefix)],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not sprung.exists()
    after = {path for path in tmp_path.rglob("*") if home not in path.parents and path != home}
    assert after == before


def test_it_works_where_torch_is_broken(process: Process, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13')\n")
    command, env = process
    env = {**env, "PYTHONPATH": f"{tmp_path}:{env.get('PYTHONPATH', '')}"}
    done = subprocess.run([*command, "doctor"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_planted_secrets_do_not_leak(
    alula: Alula, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "home/grace/work/env"
    engines(prefix)
    secret = "hf_plantedplantedplanted"
    monkeypatch.setenv("HOME", str(tmp_path / "home/grace"))
    monkeypatch.setenv("USER", "grace")
    monkeypatch.setenv("LOGNAME", "grace")
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.setenv("CUDA_HOME", f"{tmp_path}/home/grace/cuda-{secret}")
    url = "https://grace:planted-password@10.9.8.7/simple"
    notes = prefix / SITE / "sglang-0.5.9.dist-info/METADATA"
    text = notes.read_text().replace("\n\n", f"\nRequires-Dist: private @ {url}\n\n", 1)
    notes.write_text(text)
    for form in ("--json", "--markdown"):
        out = alula("doctor", form, "--env", str(prefix), *_CASE).out
        leaked = [each for each in (secret, "grace", "planted-password", "10.9.8.7") if each in out]
        assert not leaked, form
    assert "grace" in alula("doctor", "--json", "--full", "--env", str(prefix), *_CASE).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speed"], "no feature 'speed'"),
        (["--env", "/nowhere/at/all"], "no environment at"),
        (["--machine", "8x-abacus"], "not known"),
        (["--gpu", "sm_120"], "not understood"),
        (["--driver", "13.1"], "not a driver version"),
        (["--links", "string"], "not known"),
        (["--probe", "luck"], "no probe 'luck'"),
        (["--probe", "all", "--gpu", "12.0"], "this machine alone"),
        (["--json", "--markdown"], "one form"),
    ],
)
def test_refusals(alula: Alula, arguments: list[str], said: str) -> None:
    done = alula("doctor", *arguments)
    assert done.code == 2
    assert said in done.err


def test_a_probe_that_does_not_pass_is_told_by_the_exit_code(alula: Alula, tmp_path: Path) -> None:
    engines(tmp_path / "env")
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(exist_ok=True)
    python.write_text("#!/bin/sh\necho cannot import >&2\nexit 3\n")
    python.chmod(0o755)
    done = alula("doctor", "--env", str(tmp_path / "env"), "--probe", "import", "--json")
    assert done.code == 1
    (probe,) = json.loads(done.out)["probes"]
    assert (probe["ending"], probe["findings"]) == (
        "failed",
        ["no answer, exit code 3", "cannot import"],
    )


def test_a_cache_that_cannot_be_written_is_done_without(
    alula: Alula, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ALULA_HOME", str(tmp_path / "file/below"))
    engines(tmp_path / "env")
    assert alula("doctor", "--env", str(tmp_path / "env")).code == 0


def test_nobody_without_a_home_folder_is_turned_away(
    alula: Alula, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("alula.models.home.cache_home", none)
    engines(tmp_path / "env")
    done = alula("doctor", "--json", "--env", str(tmp_path / "env"), *_CASE)
    assert done.code == 0, done.err


@pytest.mark.parametrize("form", ["--json", "--markdown"])
def test_what_is_planted_in_names_notes_and_variables_does_not_leak(
    alula: Alula, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    hidden = tmp_path / "home/grace//hopper-venv"
    engines(hidden)
    offered = tmp_path / "Users/Grace/lib"
    offered.mkdir(parents=True)
    (offered / "libcudart.so.12").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(offered))
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrst")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home/grace/token=s3cr3tvalue/10.1.2.3"))
    done = alula("doctor", form, "--env", str(hidden), *_CASE)
    assert done.code == 0, done.err
    for leak in ("grace", "Grace", "hf_abc", "s3cr3tvalue", "10.1.2.3"):
        assert leak not in done.out
    full = alula("doctor", form, "--full", "--env", str(hidden), *_CASE)
    assert "Grace" in full.out
