"""What the search prefers, rules out, asks for, and refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from alula.machine.toolkits import Toolkit
from alula.stack import wheels
from alula.stack.picture import Chosen
from alula.stack.wheels import Wheels
from asking import Ask, February, Told
from elf_files import write_library
from environments import install, make_environment
from february import CHECK_IMPLEMENTATION
from loopback_index import Made, Site, make_wheel

TAG = "cp312-cp312-manylinux_2_28_x86_64"


def packages(told: Told) -> dict[str, str]:
    return {each["name"]: each["version"] for each in told.json["lock"]["packages"]}


def general(site: Site, *made: Made) -> list[str]:
    site.put_json("/simple/", made)
    return ["--index", f"own={site.url}/simple/"]


def versions(name: str, *numbers: str, **more: Any) -> list[Made]:
    return [make_wheel(name, number, **more) for number in numbers]


def test_what_the_baseline_has_is_kept(site: Site, ask: Ask, tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    install(make_environment(prefix), "helper", "1.5")
    options = general(
        site,
        make_wheel("engine", "2", ["helper>=1", "other"]),
        *versions("helper", "1.5", "2.0"),
        *versions("other", "1", "3"),
    )
    told = ask(*options, "--want", "engine", "--env", prefix, "--json")
    assert packages(told) == {"engine": "2", "helper": "1.5", "other": "3"}


def test_a_version_of_the_baseline_that_cannot_stay_is_changed(
    site: Site, ask: Ask, tmp_path: Path
) -> None:
    prefix = tmp_path / "env"
    install(make_environment(prefix), "helper", "1.5")
    options = general(
        site, make_wheel("engine", "2", ["helper>=2"]), *versions("helper", "1.5", "2.0", "3.0")
    )
    told = ask(*options, "--want", "engine", "--env", prefix, "--json")
    assert packages(told)["helper"] == "3.0"


def test_stable_comes_before_a_pre_release(site: Site, ask: Ask) -> None:
    options = general(site, *versions("engine", "1.0", "2.0rc1"))
    assert packages(ask(*options, "--want", "engine", "--json")) == {"engine": "1.0"}
    pinned = ask(*options, "--want", "engine==2.0rc1", "--json")
    assert packages(pinned) == {"engine": "2.0rc1"}


def test_a_withdrawn_version_is_not_taken(site: Site, ask: Ask) -> None:
    options = general(site, make_wheel("engine", "1"), make_wheel("engine", "2", yanked="broken"))
    assert packages(ask(*options, "--want", "engine", "--json")) == {"engine": "1"}


def test_a_torch_without_the_symbols_is_ruled_out(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--want", "sgl-kernel==0.3.21+cu130", "--want", "torch", "--json")
    assert packages(told)["torch"] == "2.9.1+cu130"
    torch = next(each for each in told.json["decisions"] if each["what"] == "torch")
    reasons = {each["choice"]: each["reason"] for each in torch["rejected"]}
    assert CHECK_IMPLEMENTATION in reasons["2.10.0+cu130 of pytorch-cu130"]


def test_a_gpu_that_nothing_was_built_for(february: February, ask: Ask) -> None:
    machine = ("--gpu", "7.0", "--driver", "590.48.01", "--glibc", "2.35")
    told = ask(*february.options, "--want", "torch==2.9.1", "--json", machine=machine)
    assert told.code == 3
    assert told.json["lock"] is None
    failed = [each for each in told.json["checks"] if each["verdict"] == "failed"]
    assert any("7.0" in each["words"] for each in failed)


def test_an_index_that_is_down_is_named_and_done_without(february: February, ask: Ask) -> None:
    gone = ["--index", "pytorch-cu130=http://127.0.0.1:1/whl/"]
    pypi = february.options[:2]
    told = ask(*pypi, *gone, "--want", "torch==2.9.1", "--json")
    assert told.code == 0
    assert packages(told)["torch"] == "2.9.1"
    cuda = told.json["decisions"][0]
    assert "pytorch-cu130 is down" in cuda["rejected"][0]["reason"]
    states = {each["name"]: each["state"] for each in told.json["lock"]["indexes"]}
    assert states == {"pypi": "read", "pytorch-cu130": "down"}


def test_the_cuda_that_is_asked_for(february: February, ask: Ask) -> None:
    wanted = ("--want", "torch==2.9.1", "--json")
    assert packages(ask(*february.options, *wanted, "--cuda", "12.8"))["torch"] == "2.9.1+cu128"
    assert packages(ask(*february.options, *wanted, "--cuda", "13.0"))["torch"] == "2.9.1+cu130"
    none = ask(*february.options, *wanted, "--cuda", "11.8")
    assert none.code == 3


def test_made_again_offline_it_is_the_same(site: Site, ask: Ask) -> None:
    wheel = make_wheel("torch", "2.9.1", [], {"torch/lib/libtorch.so": write_library()}, TAG)
    options = general(site, make_wheel("engine", "1", ["torch"]), wheel)
    first = ask(*options, "--want", "engine", "--json")
    site.asked.clear()
    second = ask(*options, "--want", "engine", "--json", "--offline")
    assert second.code == 0
    assert site.asked == []
    assert second.json["lock"]["packages"] == first.json["lock"]["packages"]
    assert {each["state"] for each in second.json["lock"]["indexes"]} == {"cached"}


def test_a_wheelhouse_spares_the_way_to_the_index(site: Site, ask: Ask, tmp_path: Path) -> None:
    wheel = make_wheel("torch", "2.9.1", [], {"torch/lib/libtorch.so": write_library()}, TAG)
    options = general(site, wheel)
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / wheel.filename).write_bytes(wheel.data)
    told = ask(*options, "--want", "torch", "--json", "--wheelhouse", tmp_path / "house")
    assert told.code == 0
    assert not any(path.startswith("/files/") for path in site.asked)
    assert told.json["lock"]["packages"][0]["url"].startswith(site.url)


def test_much_is_not_fetched_without_a_yes(
    february: February, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "ASK_ABOVE", 700)
    wanted = ("--want", "sglang==0.5.9", "--json")
    told = ask(*february.options, *wanted)
    assert told.json["unread_bytes"] > 700
    unchecked = {e["check"] for e in told.json["checks"] if e["verdict"] == "not checked"}
    assert {"an image for every GPU", "symbols of torch and NCCL"} <= unchecked
    agreed = ask(*february.options, *wanted, "--yes")
    assert agreed.json["unread_bytes"] == 0


def test_a_gate_that_nobody_has_read_is_not_said_to_be_closed(
    february: February, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(_wheels: Wheels, each: Chosen, _advance: object) -> Chosen:
        return each

    monkeypatch.setattr(Wheels, "_looked_into", unread)
    told = ask(*february.options, "--want", "sglang==0.5.9", "--json")
    gates = told.json["features"]["flashinfer-pcie-allreduce"]["gates"]
    of_flashinfer = [each for each in gates if each["layer"] == "version check"][1:]
    assert {each["verdict"] for each in of_flashinfer} == {"unknown"}


def test_what_the_baseline_alone_has_would_be_lost(
    february: February, ask: Ask, tmp_path: Path
) -> None:
    prefix = tmp_path / "env"
    install(make_environment(prefix), "flash-attn", "2.8.3")
    told = ask(*february.options, "--want", "sglang==0.5.9", "--env", prefix, "--json")
    assert "flash-attn 2.8.3 is in the baseline and not in the set" in told.json["lost"]


def test_a_set_without_a_wheel_of_any_cuda_names_none(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--want", "numpy", "--json")
    assert packages(told) == {"numpy": "2.4.2"}
    assert told.json["lock"]["cuda"] is None
    assert told.json["lock"]["toolkit"]["kind"] == "none"


def test_a_toolkit_that_lies_in_a_folder_is_used(
    february: February, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Toolkit("/opt/cuda-13.0", "13.0.88", ("120", "120a"))
    monkeypatch.setattr("alula.stack.ask.find_toolkits", lambda *_: (found,))
    told = ask(*february.options, "--want", "sglang==0.5.9", "--json", machine=("--glibc", "2.35"))
    toolkit = told.json["lock"]["toolkit"]
    assert (toolkit["kind"], toolkit["path"]) == ("folder", "/opt/cuda-13.0")
    assert "nvidia-cuda-nvcc" not in packages(told)


def test_a_toolkit_that_no_index_has_is_the_owners_to_install(site: Site, ask: Ask) -> None:
    site.put_pytorch("/whl/", [make_wheel("torch", "2.9.1+cu130", tag=TAG)])
    options = general(site, make_wheel("sglang", "0.5.9", ["torch"]))
    options += ["--index", f"pytorch-cu130={site.url}/whl/"]
    toolkit = ask(*options, "--want", "sglang", "--json").json["lock"]["toolkit"]
    assert toolkit["kind"] == "owner"
    assert "--toolkitpath=" in toolkit["command"]
    assert "--driver" not in toolkit["command"] and "sudo" not in toolkit["command"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--want", "torch=2"),
        ("--want", "torch @ https://host/torch.whl"),
        ("--want", "torch", "--as-of", "yesterday"),
        ("--want", "torch", "--cuda", "thirteen"),
        ("--want", "torch", "--python", "2"),
        ("--want", "torch", "--glibc", "musl"),
        ("--want", "torch", "--index", "nobody"),
        ("--want", "torch", "--model", "nobody"),
        ("--want", "torch", "--goal", "nobody"),
        ("--want", "torch", "--env", "/nowhere"),
        ("--want", "torch", "--wheelhouse", "/nowhere"),
        ("--check", "/nowhere"),
    ],
)
def test_bad_input_is_refused_before_anything_is_read(
    site: Site, ask: Ask, arguments: tuple[str, ...]
) -> None:
    options = general(site, make_wheel("torch", "1"))
    told = ask(*(arguments if "--index" in arguments else (*options, *arguments)))
    assert told.code == 2
    assert site.asked == []


@pytest.mark.parametrize(
    "text",
    [
        "decision = 3",
        '[[decision]]\nwhat = "x"\npackages = { torch = "newest" }',
        '[[decision]]\nwhat = "x"\ntoolkit = "13"',
        '[[decision]]\nwhat = "x"\nunknown = 1',
        '[[decision]]\nwhat = "x"\npackages = { torch = "1" }\nindex = "nobody"',
        '[[decision]\nwhat = "x"',
    ],
)
def test_a_plan_that_is_none_is_refused(site: Site, ask: Ask, tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    options = general(site, make_wheel("torch", "1"))
    assert ask(*options, "--check", tmp_path / "plan.toml").code == 2


def test_without_uv_it_says_so(site: Site, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    told = ask(*general(site, make_wheel("torch", "1")), "--want", "torch", "--json")
    assert told.code == 6
    assert told.json["error"]["what"] == "uv is not installed"


def test_a_page_of_nonsense_is_told_and_nothing_taken_from_it(site: Site, ask: Ask) -> None:
    kind = "application/vnd.pypi.simple.v1+json"
    site.put("/simple/torch/", b'{"files": [1, 2', kind)
    told = ask("--index", f"own={site.url}/simple/", "--want", "torch", "--json")
    assert told.code == 3
    assert any("cannot be read" in each for each in told.json["odd_in_indexes"])


def test_in_a_pipe_each_statement_is_one_line(february: February, ask: Ask) -> None:
    told = ask(*february.options, "--want", "sglang==0.5.9")
    lines = told.out.splitlines()
    assert lines[0].startswith("a set of ")
    assert all(line == line.rstrip() for line in lines)
    assert any(len(line) > 150 for line in lines)
    assert "\x1b" not in told.out


def test_the_cuda_of_the_baseline_is_kept_unless_another_is_asked_for(
    february: February, ask: Ask, tmp_path: Path
) -> None:
    prefix = tmp_path / "env"
    install(make_environment(prefix), "torch", "2.9.1+cu128")
    wanted = (*february.options, "--want", "sglang==0.5.9", "--env", prefix, "--json")
    told = ask(*wanted)
    assert packages(told)["torch"] == "2.9.1+cu128"
    assert told.json["decisions"][0]["reason"] == "it is that of the baseline"
    assert packages(ask(*wanted, "--cuda", "13.0"))["torch"] == "2.9.1+cu130"


def test_what_was_closed_in_the_baseline_and_is_open_now_is_told(
    february: February, ask: Ask, tmp_path: Path
) -> None:
    prefix = tmp_path / "env"
    site = make_environment(prefix)
    install(site, "sglang", "0.5.9")
    lacking = write_library(needed=("libcudart.so.99",))
    install(site, "sgl-kernel", "0.3.20", {"sgl_kernel/common_ops.so": lacking})
    told = ask(*february.options, "--want", "sglang==0.5.9", "--env", prefix, "--json")
    eagle3 = told.json["features"]["eagle3"]
    assert (eagle3["was_closed"], eagle3["open"]) == (True, True)
    assert "eagle3" in told.json["lock"]["opens"]
