"""A probe of an environment: what passes, what fails, and what is not run and so no pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from alula.errors import UsageError
from alula.machine.environment import environment_at
from alula.machine.facts import Machine
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.probe_child import Ending, Outcome
from alula.machine.software import Software, read_software
from alula.machine.whatif import named
from alula.stack import patches
from alula.stack.patches_find import find
from alula.stack.patches_target import Target
from alula.stack.probe import Asked, main, probe
from alula.stack.probe_children import Children, Python
from alula.stack.probe_gates import Retester, closed_gates, effect_of
from alula.stack.probe_records import Check, ProbeReport, Reopened, Result, Stage, overall
from alula.stack.probe_static import check_files, check_static
from alula.stack.probe_tokens import (
    Limits,
    Run,
    check_first,
    check_greedy,
    check_throughput,
    first_divergence,
    read_run,
)
from elf_files import write_container, write_image, write_library
from engines_environment import engines
from local_changes import install

PASSED, FAILED, NOT_RUN = Result.PASSED, Result.FAILED, Result.NOT_RUN
CASE = named("8x-rtx-pro-6000")


def files(prefix: Path) -> dict[str, Check]:
    return {check.name: check for check in check_files(environment_at(prefix), lambda _: None)}


def static(prefix: Path, machine: Machine) -> dict[str, Check]:
    environment = environment_at(prefix)
    software = read_software(environment, {})
    return {check.name: check for check in check_static(machine, environment, software)}


def test_not_run_is_never_a_pass() -> None:
    assert overall([]) is NOT_RUN
    assert overall([PASSED, PASSED]) is PASSED
    assert overall([PASSED, NOT_RUN]) is NOT_RUN
    assert overall([PASSED, NOT_RUN, FAILED]) is FAILED
    checks = (Check(Stage.FILES, "a", PASSED), Check(Stage.KERNEL, "b", NOT_RUN, "no GPU"))
    report = ProbeReport("/e", "3.12", "now", checks)
    assert report.verdict() == (
        "nothing failed, but not all was run: checks 1 passed, 0 failed, 1 not run"
    )
    assert report.to_json()["stages"]["greedy tokens"] == "not run"


def test_files_that_differ_are_missing_or_are_claimed_twice(tmp_path: Path) -> None:
    site = install(tmp_path, "whole", "1.0", {"whole.py": "x\n"})
    install(tmp_path, "broken", "1.0", {"broken.py": "x\n", "lost.py": "y\n"})
    assert {check.result for check in files(tmp_path).values()} == {PASSED}
    (site / "broken.py").write_text("edited\n")
    (site / "lost.py").unlink()
    install(tmp_path, "thief", "1.0", {"whole.py": "z\n"})
    found = files(tmp_path)
    assert found["RECORD of broken"].result is FAILED
    assert found["RECORD of broken"].reason == "broken.py differs, lost.py is missing"
    assert found["RECORD of whole"].result is FAILED
    assert "whole.py is claimed by" in found["no file of two packages"].reason


def test_a_package_without_hashes_was_not_checked(tmp_path: Path) -> None:
    site = install(tmp_path, "one", "1.0", {"one.py": "x\n"})
    (site / "one-1.0.dist-info/RECORD").unlink()
    assert files(tmp_path)["RECORD of the rest"].result is NOT_RUN


def test_an_edit_that_was_made_again_on_purpose_is_none(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "one", "1.0", {"one.py": "x\n"})
    (old / "one.py").write_text("mine\n")
    new = install(tmp_path / "new", "one", "1.1", {"one.py": "x\n"})
    find(environment_at(tmp_path / "old"), tmp_path / "saved")
    patches.reapply(tmp_path / "new", tmp_path / "saved", Target())
    assert (new / "one.py").read_text() == "mine\n"
    found = files(tmp_path / "new")
    assert found["RECORD of the others"].result is PASSED
    assert "1 files changed on purpose" in found["RECORD of the others"].reason
    (new / "one.py").write_text("and again\n")
    assert files(tmp_path / "new")["RECORD of one"].result is FAILED


def test_linkage_and_images(tmp_path: Path) -> None:
    missing = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
    torch = write_library(soname="libc10.so", defined=["_ZN3c10other"])
    install(tmp_path, "torch", "2.10.0", {"torch/lib/libc10.so": torch})
    kernels = write_library(
        write_container(write_image(90)), undefined=[missing], needed=["libc10.so"]
    )
    install(tmp_path, "sgl-kernel", "0.3.21", {"sgl_kernel/common_ops.so": kernels})
    alone = static(tmp_path, Machine())
    assert alone["linkage of sgl-kernel 0.3.21"].result is FAILED
    assert missing in alone["linkage of sgl-kernel 0.3.21"].reason
    assert alone["linkage of torch 2.10.0"].result is PASSED
    assert alone["images of sgl-kernel 0.3.21"].result is NOT_RUN
    there = static(tmp_path, CASE)
    assert there["images of sgl-kernel 0.3.21 for 12.0"].result is FAILED
    assert static(tmp_path, named("h200"))["images of sgl-kernel 0.3.21 for 9.0"].result is PASSED


def run(*tokens: int, gaps: tuple[float, ...] = (), **more: object) -> Run:
    facts = {"tokens": list(tokens), "gaps": list(gaps), **more}
    found = read_run(facts)
    assert found is not None
    return found


def test_the_first_divergence_and_its_gap() -> None:
    expected = run(1, 2, 3, 4, gaps=(1.0, 0.9, 0.01, 0.5))
    assert first_divergence(expected, run(1, 2, 3, 4)) is None
    divergence = first_divergence(expected, run(1, 2, 9, 8))
    assert divergence == (0, 2, 3, 9, 0.01)
    near = check_greedy(expected, run(1, 2, 9, 8), Limits(gap=0.02))
    assert near.result is PASSED
    assert "token 2 of prompt 0 is 9, not 3" in near.reason
    assert check_greedy(expected, run(1, 2, 9, 8), Limits(gap=0.005)).result is FAILED
    assert check_greedy(expected, run(1, 7, 3, 4), Limits(gap=0.02)).result is FAILED


def test_a_shorter_answer_diverges_where_it_ends() -> None:
    expected = run(1, 2, 3, gaps=(1.0, 1.0, 1.0))
    assert first_divergence(expected, run(1, 2)) == (0, 2, 3, -1, 1.0)
    assert check_greedy(expected, run(1, 2), Limits()).result is FAILED


def test_without_gaps_another_token_fails() -> None:
    assert check_greedy(run(1, 2), run(1, 3), Limits()).result is FAILED


def test_several_prompts() -> None:
    expected = read_run({"tokens": [[1, 2], [3, 4]], "gaps": [[1, 1], [1, 0.5]]})
    found = read_run({"tokens": [[1, 2], [3, 5]]})
    assert expected is not None
    assert found is not None
    assert first_divergence(expected, found) == (1, 1, 4, 5, 0.5)


@pytest.mark.parametrize(
    "facts", [{}, {"tokens": []}, {"tokens": "abc"}, {"tokens": [["x"]]}, {"tokens": 3}]
)
def test_what_is_no_run(facts: dict[str, object]) -> None:
    assert read_run(facts) is None
    outcome = Outcome("workload", Ending.PASSED, measured=facts)
    assert check_first(outcome).result is FAILED


def test_throughput_within_noise() -> None:
    steady = [[100.0, 101.0, 99.0]] * 3
    assert check_throughput(steady, [[98.0]] * 3, Limits()).result is PASSED
    assert check_throughput(steady, [[90.0]] * 3, Limits()).result is FAILED
    assert check_throughput(steady, [[140.0]] * 3, Limits()).result is PASSED
    shaky = [[100.0], [80.0], [120.0]]
    check = check_throughput(shaky, [[90.0]] * 3, Limits())
    assert (check.result, round(check.measured["noise"], 2)) == (PASSED, 0.2)
    assert check_throughput([], [[1.0]], Limits()).result is NOT_RUN


PLAIN = {"tokens": [5, 6, 7], "gaps": [1.0, 1.0, 1.0], "kernels": {"nccl": 4, "gemm": 9}}


def test_a_feature_that_changes_no_launch_is_noop() -> None:
    plain = read_run(PLAIN)
    assert plain is not None
    assert effect_of([plain], plain, Limits())[0] is Reopened.NOOP
    fused = run(5, 6, 7, kernels={"fused": 4, "gemm": 9})
    assert effect_of([plain], fused, Limits())[0] is Reopened.OPEN
    garbage = run(5, 0, 0, kernels={"fused": 4, "gemm": 9})
    assert effect_of([plain], garbage, Limits())[0] is Reopened.FAILED
    for silent in (run(5, 6, 7), run(5, 6, 7, kernels={})):
        assert effect_of([silent], silent, Limits())[0] is Reopened.NOT_RUN


def test_counts_that_vary_by_themselves_show_nothing() -> None:
    plain = [run(5, kernels={"gemm": 9, "copy": n}) for n in (3, 5)]
    assert effect_of(plain, run(5, kernels={"gemm": 9, "copy": 4}), Limits())[0] is Reopened.NOOP
    assert effect_of(plain, run(5, kernels={"gemm": 9, "copy": 6}), Limits())[0] is Reopened.OPEN
    assert effect_of(plain[:1], run(5, kernels={"gemm": 9}), Limits())[0] is Reopened.OPEN


WORKLOAD = """
import json, os, sys
feature = os.environ["ALULA_FEATURE"]
tokens, kernels = [5, 6, 7], {"nccl": 4, "gemm": 9}
if feature == "flashinfer-allreduce-fusion":
    kernels = {"fused": 4, "gemm": 9}
if feature == "torch-symm-mem":
    sys.exit("KeyError: 12")
if feature == "flashinfer-pcie-allreduce":
    tokens = [5, 0, 0]
print("loading")
print(json.dumps({"findings": [], "measured":
    {"tokens": tokens, "gaps": [1.0, 1.0, 1.0], "kernels": kernels}}))
"""


@pytest.fixture
def workload(tmp_path: Path) -> Children:
    script = tmp_path / "workload.py"
    script.write_text(WORKLOAD)
    return Children(Python(Path(sys.executable), 0, os.environ, script))


def retester(machine: Machine, software: Software, children: Children | None = None) -> Retester:
    run_without = read_run(PLAIN)
    assert run_without is not None
    plain = [run_without]
    with_feature = children.workload if children else None
    return Retester(machine, software, {}, plain, with_feature, Limits())


def verdicts(tester: Retester, machine: Machine, before: Software) -> dict[str, set[Reopened]]:
    found: dict[str, set[Reopened]] = {}
    for gate in closed_gates(machine, before):
        owner = gate.component.split(" ")[0]
        key = f"{gate.feature} {owner} {gate.layer}"
        found.setdefault(key, set()).add(tester.try_again(gate).verdict)
    return found


def test_gates_by_the_files_of_the_new_environment(tmp_path: Path) -> None:
    """FlashInfer 0.6.17 opens its own list, and SGLang goes on skipping the fusion."""
    engines(tmp_path / "old", "0.6.4")
    engines(tmp_path / "new", "0.6.17")
    before = read_software(environment_at(tmp_path / "old"), {})
    after = read_software(environment_at(tmp_path / "new"), {})
    found = verdicts(retester(CASE, after), CASE, before)
    fusion = "flashinfer-allreduce-fusion"
    assert found[f"{fusion} flashinfer-python allow-list"] == {Reopened.NOOP}
    assert found[f"{fusion} flashinfer-python C++ check"] == {Reopened.NOOP}
    assert found[f"{fusion} sglang allow-list"] == {Reopened.CLOSED}
    assert found["torch-symm-mem sglang allow-list"] == {Reopened.CLOSED}
    assert Reopened.OPEN not in {v for each in found.values() for v in each}


def test_gates_by_running_the_feature(tmp_path: Path, workload: Children) -> None:
    engines(tmp_path / "old", "0.6.4")
    site = engines(tmp_path / "new", "0.6.18")
    table = "sglang/srt/distributed/device_communicators/all_reduce_utils.py"
    opened = "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES = {9: {}, 10: {}, 12: {}}\n"
    (site / table).write_text(opened)
    before = read_software(environment_at(tmp_path / "old"), {})
    after = read_software(environment_at(tmp_path / "new"), {})
    found = verdicts(retester(CASE, after, workload), CASE, before)
    fusion = "flashinfer-allreduce-fusion flashinfer-python"
    assert found[f"{fusion} allow-list"] == {Reopened.OPEN}
    assert found["torch-symm-mem sglang allow-list"] == {Reopened.FAILED}
    pcie = "flashinfer-pcie-allreduce flashinfer-python version check"
    assert found[pcie] == {Reopened.FAILED}


def test_a_feature_is_run_alone_and_once(tmp_path: Path, workload: Children) -> None:
    engines(tmp_path / "old", "0.6.4")
    engines(tmp_path / "new", "0.6.17")
    asked: list[str] = []

    def run_with(feature: str) -> Outcome:
        asked.append(feature)
        return workload.workload(feature)

    tester = retester(CASE, read_software(environment_at(tmp_path / "new"), {}))
    tester.run_with = run_with
    for gate in closed_gates(CASE, read_software(environment_at(tmp_path / "old"), {})):
        tester.try_again(gate)
    assert asked == ["flashinfer-allreduce-fusion"]


def test_a_package_gate_is_open_only_after_it_ran() -> None:
    gate = Gate(
        "sgl-kernel 0.3.21",
        "common_ops.so",
        Layer.LINKAGE,
        "torch offers its symbols",
        "missing",
        GateVerdict.CLOSED,
        "symbol",
    )
    tester = retester(CASE, Software())
    assert tester.try_again(gate).verdict is Reopened.NOT_RUN
    for wrong, verdict in (("", Reopened.OPEN), ("ImportError", Reopened.FAILED)):
        imported = Outcome("import", Ending.PASSED, parts={"sgl_kernel": wrong})
        tester.outcomes = {"import": imported}
        assert tester.try_again(gate).verdict is verdict
    images = Gate(
        "sgl-kernel 0.3.21",
        "common_ops.so",
        Layer.DEVICE_CODE,
        "an image that the driver loads on 12.0",
        "none",
        GateVerdict.CLOSED,
        "image",
    )
    tester.outcomes = {"import": Outcome("import", Ending.PASSED, parts={"sgl_kernel": ""})}
    assert tester.try_again(images).verdict is Reopened.NOT_RUN


def test_an_environment_without_torch(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    install(tmp_path / "env", "one", "1.0", {"one.py": "x\n"}, python=version)
    announced: list[str] = []
    report = probe(Asked(tmp_path / "env"), os.environ, announced.append)
    assert report.of(Stage.FILES) is PASSED
    for stage in (Stage.KERNEL, Stage.COLLECTIVE, Stage.ONE_TOKEN, Stage.GREEDY, Stage.THROUGHPUT):
        assert report.of(stage) is NOT_RUN
    assert announced == ["static", "import"]
    assert main([str(tmp_path / "env"), "--json", str(tmp_path / "report.json")]) == 0
    saved = json.loads((tmp_path / "report.json").read_text())
    assert (saved["result"], saved["stages"]["files"]) == ("not run", "passed")


def test_a_workload_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no workload"):
        probe(Asked(workload=tmp_path / "none.py"), os.environ)


def test_a_hang_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alula.stack import probe_children

    monkeypatch.setitem(probe_children._SECONDS, "workload", 1.0)
    script = tmp_path / "hangs.py"
    script.write_text("import time; time.sleep(60)")
    children = Children(Python(Path(sys.executable), 0, os.environ, script))
    check = check_first(children.workload())
    assert check.result is FAILED
    assert check.reason.startswith("it hung")


@pytest.mark.parametrize("name", ["cpu", "gloo", "tokens"])
def test_the_scripts_import_nothing_of_alula(name: str) -> None:
    import alula.stack.probe_children as module

    script = Path(module.__file__).with_name("probes") / f"{name}_probe.py"
    lines = script.read_text().splitlines()
    imports = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
    assert imports
    assert all(name.partition(".")[0] in sys.stdlib_module_names for name in imports)


def test_no_module_of_the_probe_needs_pydantic() -> None:
    """Nor what else the machines that are probed may lack."""
    program = (
        "import sys\n"
        "for name in ('pydantic', 'typer', 'rich', 'torch', 'numpy'): sys.modules[name] = None\n"
        "import alula.stack.probe\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_python_that_breaks_is_a_failure(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libpython3.12.so: cannot open' >&2\nexit 127\n")
    broken.chmod(0o755)
    (check,) = Children(Python(broken, 0, os.environ)).imports()
    assert check.result is FAILED
    assert check.reason == "no answer, exit code 127; libpython3.12.so: cannot open"


def test_libraries_from_outside_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = f"{tmp_path}/lib/libc10.so", "/usr/local/cuda/lib64/libcudart.so.13"
    answer = {
        "findings": [],
        "measured": {"torch": "2.11.0", "libraries": [own, other]},
        "parts": {"torch": "", "triton": ""},
    }
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    python.chmod(0o755)
    torch, triton = Children(Python(python, 0, os.environ)).imports()
    assert torch.reason == f"2.11.0; from outside of the environment: {other}"
    assert torch.measured == {"libraries": [own, other]}
    assert (triton.result, triton.measured) == (PASSED, {})


def test_torch_on_the_cpu() -> None:
    children = Children(Python(Path(sys.executable), 0, os.environ))
    kernels = list(children.kernels())
    assert [check.result for check in kernels] == [PASSED, PASSED, NOT_RUN]
    first = check_first(children.workload())
    assert first.result is PASSED
    assert first.measured["first_token_error"] < 1e-3


def test_gloo_between_two_processes() -> None:
    found = list(Children(Python(Path(sys.executable), 0, os.environ)).collectives())
    assert [check.result for check in found] == [PASSED, PASSED, PASSED, NOT_RUN]


@pytest.mark.slow
def test_an_environment_against_itself() -> None:
    own = Path(sys.prefix)
    report = probe(Asked(own, own), os.environ)
    assert report.result is not FAILED, report.verdict()
    assert report.of(Stage.GREEDY) is PASSED
    greedy = next(check for check in report.checks if check.stage is Stage.GREEDY)
    assert greedy.reason == "all 64 are the same"
    assert report.of(Stage.THROUGHPUT) is PASSED
