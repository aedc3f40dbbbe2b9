"""Local changes: each is found, saved, classed right and made again; nothing else is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from alula.errors import MachineError, UsageError
from alula.machine.environment import environment_at
from alula.stack.patches import reapply
from alula.stack.patches_find import Named, find
from alula.stack.patches_preview import preview
from alula.stack.patches_records import Judged, Kind, Snapshot, Standing, read_snapshot
from alula.stack.patches_target import Target
from local_changes import (
    commit,
    editable,
    fingerprint,
    git,
    install,
    package,
    text,
    wheel,
    with_changes,
    write,
)


@dataclass
class Case:
    """One machine: an old environment with changes of every kind, and a new one."""

    root: Path
    checkout: Path
    commits: dict[str, str]
    snapshot: Snapshot
    judged: dict[str, Judged]
    before: dict[str, str]

    @property
    def old(self) -> Path:
        return self.root / "old"

    @property
    def new(self) -> Path:
        return self.root / "new"

    @property
    def saved(self) -> Path:
        return self.root / "snapshot"

    def target(self, **more: object) -> Target:
        wheels = [self.root / "wheels"]
        return Target(environment=environment_at(self.new), wheels=wheels, **more)  # type: ignore[arg-type]


PAIRS = {name: f"library/{name}.py" for name in ("same", "merges", "clash", "fixed", "lost")}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    root = tmp_path_factory.mktemp("machine")
    checkout = package(root / "engine")
    commits = with_changes(checkout)
    old_environment(root, checkout)
    new_environment(root)
    (root / "start.sh").write_text("#!/bin/sh\nexec python -m engine --tp 8\n")
    (root / "stale.sh").write_text(f"#!/bin/sh\nexec {root}/old/bin/python -m engine\n")
    before = fingerprint(root)
    named = Named(
        variables={"NCCL_P2P_LEVEL": "SYS", "CUDA_HOME": "/usr/local/cuda", "X": f"{root}/old/x"},
        scripts=[root / "start.sh", root / "stale.sh"],
    )
    snapshot = find(environment_at(root / "old"), root / "snapshot", named)
    found = Case(root, checkout, commits, snapshot, {}, before)
    judged = preview(snapshot, found.saved, found.target())
    found.judged = {each.change.id: each for each in judged}
    return found


def old_environment(root: Path, checkout: Path) -> None:
    old = root / "old"
    install(old, "engine", "1.0", {}, origin=editable(checkout / "python"))
    originals = {path: text() for path in PAIRS.values()}
    site = install(old, "library", "1.0", {**originals, "library/__init__.py": ""})
    wheel(root / "wheels", "library", "1.0", originals)
    edited = text(line_5="mine")
    write(site, dict.fromkeys(PAIRS.values(), edited))
    install(old, "no-original", "1.0", {"no_original.py": text()})
    write(site, {"no_original.py": edited})
    install(old, "left-out", "1.0", {"left_out.py": text()})
    write(site, {"left_out.py": edited})
    write(site, {"sitecustomize.py": "import os\n", "mine.pth": f"{root}\n", "dead.pth": "/gone\n"})
    write(site, {"inward.pth": f"{old}/extra\n", "helpers/a.py": "a\n", "helpers/b/c.py": "c\n"})
    write(site, {"library/extra.py": "beside the package's own\n"})
    pure = {"url": f"file://{root}/pure", "dir_info": {}}
    install(old, "pure", "0.1", {"pure.py": "x = 1\n"}, origin=pure)
    install(
        old,
        "flash-attn",
        "2.8",
        {"flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so": b"\x7fELF"},
        tag="cp311-cp311-linux_x86_64",
    )
    install(
        old, "ordinary", "1.0", {"ordinary.py": "x = 2\n"}, tag="cp311-cp311-manylinux_2_28_x86_64"
    )


def new_environment(root: Path) -> None:
    new = root / "new"
    target = {
        "library/same.py": text(),
        "library/merges.py": text(line_25="theirs"),
        "library/clash.py": text(line_5="theirs"),
        "library/fixed.py": text(line_5="mine"),
        "library/__init__.py": "",
    }
    install(new, "library", "2.0", target)
    install(new, "engine", "2.0", {"engine/__init__.py": ""})
    install(new, "no-original", "2.0", {"no_original.py": text(line_25="theirs")})


def standings(case: Case, kind: Kind) -> dict[str, Standing]:
    return {i: each.standing for i, each in case.judged.items() if each.change.kind is kind}


def test_commits_of_a_checkout(case: Case) -> None:
    by_name = {name: f"engine:{sha[:10]}" for name, sha in case.commits.items()}
    found = standings(case, Kind.COMMIT)
    assert found == {
        by_name["clean"]: Standing.APPLIED,
        by_name["taken"]: Standing.UPSTREAM,
        by_name["clash"]: Standing.CONFLICT,
        by_name["gone"]: Standing.OBSOLETE,
    }
    clash = case.judged[by_name["clash"]]
    assert clash.conflicts == ("python/engine/clash.py",)
    assert "gone.py" in case.judged[by_name["gone"]].reason


def test_what_is_not_committed(case: Case) -> None:
    edits = case.judged["engine:uncommitted"]
    assert (edits.standing, edits.change.files) == (Standing.APPLIED, ("python/engine/dirty.py",))
    new = case.judged["engine:untracked"]
    assert (new.standing, new.change.files) == (Standing.APPLIED, ("python/engine/new.py",))


def test_edits_in_site_packages(case: Case) -> None:
    assert standings(case, Kind.EDIT) == {
        "library:library/same.py": Standing.APPLIED,
        "library:library/merges.py": Standing.APPLIED,
        "library:library/clash.py": Standing.CONFLICT,
        "library:library/fixed.py": Standing.UPSTREAM,
        "library:library/lost.py": Standing.OBSOLETE,
        "no-original:no_original.py": Standing.ONLY_THERE,
        "left-out:left_out.py": Standing.OBSOLETE,
    }
    assert "no folder named by --wheels" in case.judged["no-original:no_original.py"].reason


def test_files_of_no_package(case: Case) -> None:
    assert standings(case, Kind.STRAY) == {
        "site:dead.pth": Standing.OBSOLETE,
        "site:helpers/": Standing.KEEP,
        "site:inward.pth": Standing.CONFLICT,
        "site:library/extra.py": Standing.KEEP,
        "site:mine.pth": Standing.KEEP,
        "site:sitecustomize.py": Standing.KEEP,
    }
    assert case.judged["site:helpers/"].change.files == ("helpers/a.py", "helpers/b/c.py")


def test_packages_that_were_built_here(case: Case) -> None:
    assert standings(case, Kind.BUILT) == {
        "wheel:pure": Standing.KEEP,
        "wheel:flash-attn": Standing.REBUILD,
    }
    assert "Python 3.11, not 3.12" in case.judged["wheel:flash-attn"].reason


def test_variables_and_scripts(case: Case) -> None:
    assert standings(case, Kind.VARIABLE) == {
        "env:NCCL_P2P_LEVEL": Standing.KEEP,
        "env:CUDA_HOME": Standing.DROP,
        "env:X": Standing.CONFLICT,
    }
    assert standings(case, Kind.SCRIPT) == {
        "script:start.sh": Standing.KEEP,
        "script:stale.sh": Standing.CONFLICT,
    }
    assert "line 2" in case.judged["script:stale.sh"].reason


def test_nothing_that_was_looked_at_is_touched(case: Case) -> None:
    after = fingerprint(case.root)
    kept = {path: state for path, state in after.items() if path in case.before}
    assert kept == case.before
    assert all(path.startswith(str(case.saved)) for path in set(after) - set(case.before))


def test_every_change_is_judged_and_saved(case: Case) -> None:
    assert list(case.judged) == [change.id for change in case.snapshot.changes]
    assert read_snapshot(case.saved) == case.snapshot
    for change in case.snapshot.changes:
        if change.saved:
            assert (case.saved / change.saved).exists()
        else:
            assert change.before or change.kind is Kind.VARIABLE


def test_the_snapshot_stands_alone(case: Case, tmp_path: Path) -> None:
    """The repository of a checkout's changes needs nothing of the checkout."""
    repository = case.saved / "checkouts/engine.git"
    git(tmp_path, "clone", "-q", str(repository), "copy")
    assert (tmp_path / "copy/python/engine/new.py").read_text() == "new\n"
    assert not (tmp_path / "copy/noise.log").exists()
    log = git(tmp_path / "copy", "log", "--format=%an %s")
    assert "Ada faster there" in log


def test_reapplying_stops_at_the_first_conflict(case: Case) -> None:
    new = copied(case, "stopping")
    target = case.target()
    target = Target(environment=environment_at(new), wheels=target.wheels)
    result = reapply(new, case.saved, target)
    assert result.stopped is not None
    assert result.stopped.change.id == f"engine:{case.commits['clash'][:10]}"
    assert [each.change.id for each in result.done] == [
        f"engine:{case.commits['clean'][:10]}",
        f"engine:{case.commits['taken'][:10]}",
    ]
    assert len(result.done) + 1 + len(result.left) == len(case.judged)
    assert (new / "src/engine/python/engine/clean.py").read_text() == text(
        line_5="mine", line_25="theirs"
    )
    assert (new / "src/engine/python/engine/dirty.py").read_text() == text()
    assert not (new / "lib/python3.12/site-packages/sitecustomize.py").exists()


def copied(case: Case, name: str) -> Path:
    """The new environment once more, elsewhere."""
    import shutil

    return Path(shutil.copytree(case.new, case.root.parent / f"{case.root.name}-{name}"))


def test_with_the_conflicts_decided_the_rest_is_made_again(case: Case) -> None:
    new = copied(case, "whole")
    dropped = frozenset(name for name, each in case.judged.items() if each.stops)
    target = Target(environment=environment_at(new), wheels=[case.root / "wheels"], dropped=dropped)
    result = reapply(new, case.saved, target)
    assert result.stopped is None
    assert len(result.done) == len(case.judged)
    site = new / "lib/python3.12/site-packages"
    assert (site / "library/same.py").read_text() == text(line_5="mine")
    assert (site / "library/merges.py").read_text() == text(line_5="mine", line_25="theirs")
    assert (site / "library/clash.py").read_text() == text(line_5="theirs")
    assert (site / "sitecustomize.py").read_text() == "import os\n"
    assert (site / "helpers/b/c.py").read_text() == "c\n"
    assert (site / "pure.py").read_text() == "x = 1\n"
    assert not list(site.glob("flash_attn*"))
    assert result.variables == {"NCCL_P2P_LEVEL": "SYS"}
    source = new / "src/engine"
    assert (source / "python/engine/new.py").read_text() == "new\n"
    assert (source / "python/engine/dirty.py").read_text() == text(line_1="not committed")
    assert str(source / "python") in (site / "alula_engine.pth").read_text()
    assert git(source, "status", "--porcelain") == ""
    assert git(source, "log", "--format=%an: %s") == (
        "alula: files git does not track\nalula: edits of tracked files\n"
        "Ada: faster there\nalula: engine 2.0"
    )
    assert fingerprint(case.old, case.checkout).items() <= case.before.items()

    noted = json.loads((new / "alula-patches.json").read_text())
    assert "lib/python3.12/site-packages/library/same.py" in noted["files"]

    again = reapply(new, case.saved, target)
    assert again.stopped is None
    assert {each.standing for each in again.done if each.change.kind is Kind.EDIT} <= {
        Standing.UPSTREAM,
        Standing.OBSOLETE,
        Standing.DROP,
    }


def test_the_next_upgrade_finds_what_was_made_again(case: Case, tmp_path: Path) -> None:
    new = copied(case, "next")
    dropped = frozenset(name for name, each in case.judged.items() if each.stops)
    target = Target(environment=environment_at(new), wheels=[case.root / "wheels"], dropped=dropped)
    reapply(new, case.saved, target)
    snapshot = find(environment_at(new), tmp_path / "second")
    mine = [change for change in snapshot.changes if change.package == "engine"]
    assert "site:alula_engine.pth" not in [change.id for change in snapshot.changes]
    assert "library:library/same.py" in [change.id for change in snapshot.changes]
    assert [(change.kind, change.what, change.evidence) for change in mine] == [
        (Kind.COMMIT, "faster there", "beyond v2.0"),
        (Kind.COMMIT, "edits of tracked files", "beyond v2.0"),
        (Kind.COMMIT, "files git does not track", "beyond v2.0"),
    ]


def test_without_a_target_nothing_counts_as_applied(case: Case) -> None:
    judged = preview(case.snapshot, case.saved, Target())
    assert Standing.APPLIED not in {each.standing for each in judged}
    commits = {each.standing for each in judged if each.change.kind is Kind.COMMIT}
    assert commits == {Standing.NOT_PREVIEWED}
    assert all(each.stops for each in judged if each.change.kind is Kind.COMMIT)


def test_a_target_whose_release_no_repository_has(case: Case) -> None:
    judged = preview(case.snapshot, case.saved, Target(versions={"engine": "9.9"}))
    first = judged[0]
    assert first.standing is Standing.NOT_PREVIEWED
    assert "git fetch --tags" in first.reason


def test_the_release_may_lie_in_another_repository(tmp_path: Path) -> None:
    upstream = package(tmp_path / "upstream")
    git(tmp_path, "clone", "-q", "--single-branch", "-b", "v1.0", "--depth", "1",
        upstream.as_uri(), "own")  # fmt: skip
    own = tmp_path / "own"
    git(own, "tag", "-d", "v2.0") if "v2.0" in git(own, "tag") else None
    commit(own, "mine", {"python/engine/clean.py": text(line_5="mine")})
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(own / "python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    alone = preview(snapshot, tmp_path / "saved", Target(versions={"engine": "2.0"}))
    assert [each.standing for each in alone] == [Standing.NOT_PREVIEWED]
    there = Target(versions={"engine": "2.0"}, repositories={"engine": upstream})
    judged = preview(snapshot, tmp_path / "saved", there)
    assert [each.standing for each in judged] == [Standing.APPLIED]


def test_a_patch_upstream_that_was_changed_again_since(tmp_path: Path) -> None:
    """It would conflict as text; `git cherry` knows the commit."""
    checkout = package(tmp_path / "engine")
    mine = commit(checkout, "a fix", {"python/engine/clean.py": text(line_5="wanted")})
    git(checkout, "checkout", "-q", "main")
    git(checkout, "cherry-pick", mine)
    commit(checkout, "again", {"python/engine/clean.py": text(line_5="more", line_25="theirs")})
    git(checkout, "tag", "v3.0")
    git(checkout, "checkout", "-q", "mine")
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    (judged,) = preview(snapshot, tmp_path / "saved", Target(versions={"engine": "3.0"}))
    assert (judged.standing, judged.reason) == (
        Standing.UPSTREAM,
        "engine 3.0 has the same commit",
    )


def test_a_change_that_builds_on_a_conflict_is_no_obsolete_one(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    first = {"python/engine/clash.py": text(line_5="mine"), "python/engine/own.py": text()}
    commit(checkout, "clashes, and brings a file", first)
    commit(checkout, "edits that file", {"python/engine/own.py": text(line_5="better")})
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    judged = preview(snapshot, tmp_path / "saved", Target(versions={"engine": "2.0"}))
    assert [each.standing for each in judged] == [Standing.CONFLICT, Standing.CONFLICT]
    assert judged[1].reason.startswith(f"it builds on {judged[0].change.id}")


def test_a_package_with_machine_code_is_to_be_built(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    commit(checkout, "mine", {"python/engine/clean.py": text(line_5="mine")})
    install(tmp_path / "old", "engine", "1.0", {}, origin=editable(checkout / "python"))
    install(tmp_path / "new", "engine", "2.0", {"engine/_C.abi3.so": b"\x7fELF"})
    snapshot = find(environment_at(tmp_path / "old"), tmp_path / "saved")
    target = Target(environment=environment_at(tmp_path / "new"))
    (judged,) = preview(snapshot, tmp_path / "saved", target)
    assert judged.standing is Standing.REBUILD
    reapply(tmp_path / "new", tmp_path / "saved", target)
    assert (tmp_path / "new/src/engine/python/engine/clean.py").exists()
    assert not list((tmp_path / "new").rglob("alula_engine.pth"))


def test_a_hook_or_filter_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of a checkout nor those of the user."""
    checkout = package(tmp_path / "engine")
    trap = f"touch {tmp_path}/sprung; cat"
    git(checkout, "config", "filter.own.clean", trap)
    git(checkout, "config", "core.fsmonitor", f"touch {tmp_path}/sprung")
    home = f'[filter "users"]\n clean = "{trap}"\n[core]\n hooksPath = {tmp_path}/hooks\n'
    write(tmp_path / "home", {".gitconfig": home})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(checkout, {".gitattributes": "*.py filter=own\n*.txt filter=users\n", "new.txt": "x\n"})
    write(checkout, {"python/engine/dirty.py": text(line_1="edited")})
    for folder in (checkout / ".git/hooks", tmp_path / "hooks"):
        for name in ("post-checkout", "reference-transaction", "post-index-change"):
            write(folder, {name: f"#!/bin/sh\ntouch {tmp_path}/sprung\n"})
            (folder / name).chmod(0o755)
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    preview(snapshot, tmp_path / "saved", Target(versions={"engine": "2.0"}))
    found = [change.id for change in snapshot.changes]
    assert found == ["engine:uncommitted", "engine:untracked"]
    assert not (tmp_path / "sprung").exists()


def test_a_linked_work_tree(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    git(checkout, "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"), "v1.0")
    commit(tmp_path / "linked", "mine", {"python/engine/clean.py": text(line_5="mine")})
    before = fingerprint(checkout, tmp_path / "linked")
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(tmp_path / "linked/python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    judged = preview(snapshot, tmp_path / "saved", Target(versions={"engine": "2.0"}))
    assert [each.standing for each in judged] == [Standing.APPLIED]
    assert fingerprint(checkout, tmp_path / "linked") == before


def test_a_merge_counts_as_what_it_brought(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    commit(checkout, "mine", {"python/engine/dirty.py": text(line_5="mine")})
    git(checkout, "merge", "-q", "-m", "catch up", "v2.0")
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    judged = preview(snapshot, tmp_path / "saved", Target(versions={"engine": "2.0"}))
    assert [(each.change.what, each.standing) for each in judged] == [
        ("mine", Standing.APPLIED),
        ("catch up", Standing.UPSTREAM),
    ]
    git(tmp_path / "saved/checkouts/engine.git", "fsck", "--strict")
    for change in snapshot.changes:
        git(tmp_path / "saved/checkouts/engine.git", "cat-file", "-e", change.before)


def test_a_changed_binary_is_built_again(tmp_path: Path) -> None:
    site = install(tmp_path / "old", "kernels", "1.0", {"kernels/_C.so": b"\x7fELF one"})
    (site / "kernels/_C.so").write_bytes(b"\x7fELF built here")
    install(tmp_path / "new", "kernels", "2.0", {"kernels/_C.so": b"\x7fELF two"})
    snapshot = find(environment_at(tmp_path / "old"), tmp_path / "saved")
    target = Target(environment=environment_at(tmp_path / "new"))
    assert [e.standing for e in preview(snapshot, tmp_path / "saved", target)] == [Standing.REBUILD]


def test_a_removed_file_is_a_change_too(tmp_path: Path) -> None:
    site = install(tmp_path / "old", "one", "1.0", {"a.py": "a\n", "b.py": "b\n"})
    write(site, {"a.py": None, "b.py": None})
    install(tmp_path / "new", "one", "2.0", {"a.py": "a\n"})
    snapshot = find(environment_at(tmp_path / "old"), tmp_path / "saved")
    target = Target(environment=environment_at(tmp_path / "new"))
    judged = preview(snapshot, tmp_path / "saved", target)
    assert [each.standing for each in judged] == [Standing.CONFLICT, Standing.UPSTREAM]


def test_a_snapshot_inside_of_what_it_looks_at_is_refused(tmp_path: Path) -> None:
    install(tmp_path / "env", "one", "1.0", {"a.py": "a\n"})
    with pytest.raises(UsageError, match="cannot lie in"):
        find(environment_at(tmp_path / "env"), tmp_path / "env/saved")


def test_reapplying_to_the_old_environment_is_refused(case: Case) -> None:
    with pytest.raises(UsageError, match="the environment that these changes come from"):
        reapply(case.old, case.saved)


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "snapshot.json").write_text('{"environment": 3}')
    with pytest.raises(UsageError, match="holds no snapshot"):
        read_snapshot(tmp_path)


def test_a_built_package_that_links_to_what_the_target_lacks(tmp_path: Path) -> None:
    from elf_files import write_library

    symbol = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
    built = write_library(soname="fast.so", undefined=[symbol], needed=["libc10.so"])
    install(tmp_path / "old", "fast", "1.0", {"fast.so": built}, tag="py3-none-linux_x86_64")
    snapshot = find(environment_at(tmp_path / "old"), tmp_path / "saved")
    verdicts = {}
    for version, offered in (("2.9.1", [symbol]), ("2.10.0", ["_ZN3c10other"])):
        library = write_library(soname="libc10.so", defined=offered)
        install(tmp_path / version, "torch", version, {"torch/lib/libc10.so": library})
        target = Target(environment=environment_at(tmp_path / version))
        (judged,) = preview(snapshot, tmp_path / "saved", target)
        verdicts[version] = judged
    assert verdicts["2.9.1"].standing is Standing.KEEP
    assert verdicts["2.10.0"].standing is Standing.REBUILD
    assert "which torch 2.10.0 lacks" in verdicts["2.10.0"].reason


def test_a_submodule_with_changes_of_its_own(tmp_path: Path) -> None:
    kernels = package(tmp_path / "kernels", "csrc")
    checkout = package(tmp_path / "engine")
    allowed = ("-c", "protocol.file.allow=always")
    git(checkout, *allowed, "submodule", "add", "-q", str(kernels), "3rdparty/kernels")
    git(checkout, "commit", "-q", "-m", "kernels")
    git(checkout, "tag", "v1.1")
    install(tmp_path / "env", "engine", "1.1", {}, origin=editable(checkout / "python"))
    environment = environment_at(tmp_path / "env")
    assert find(environment, tmp_path / "first").changes == ()
    write(checkout, {"3rdparty/kernels/csrc/clean.py": text(line_2="mine")})
    before = fingerprint(checkout)
    snapshot = find(environment, tmp_path / "saved")
    (judged,) = preview(snapshot, tmp_path / "saved", Target(versions={"engine": "2.0"}))
    assert judged.change.id == "engine.3rdparty.kernels:uncommitted"
    assert (judged.standing, judged.stops) == (Standing.NOT_PREVIEWED, True)
    assert fingerprint(checkout) == before


def test_source_without_git_is_saved_whole_and_to_be_decided(tmp_path: Path) -> None:
    write(tmp_path, {"engine/engine/__init__.py": "x = 1\n"})
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(tmp_path / "engine"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    target = Target(versions={"engine": "2.0"})
    (judged,) = preview(snapshot, tmp_path / "saved", target)
    assert (judged.change.id, judged.standing) == ("engine:source", Standing.NOT_PREVIEWED)
    assert (tmp_path / "saved/sources/engine/engine/__init__.py").read_text() == "x = 1\n"
    dropped = Target(versions={"engine": "2.0"}, dropped=frozenset({"engine:source"}))
    (judged,) = preview(snapshot, tmp_path / "saved", dropped)
    assert judged.standing is Standing.DROP


def test_files_of_a_package_without_record_are_no_strays(tmp_path: Path) -> None:
    site = install(tmp_path / "env", "old-style", "1.0", {"old_style/a.py": "a\n"})
    (site / "old_style-1.0.dist-info/RECORD").unlink()
    write(site, {"older.egg-info/PKG-INFO": "Name: older\n"})
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    assert snapshot.changes == ()
    assert any("old-style has no RECORD" in note for note in snapshot.notes)


def test_commits_since_no_known_release_are_to_be_decided(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    git(checkout, "tag", "-d", "v1.0", "v2.0")
    commit(checkout, "mine", {"python/engine/clean.py": text(line_5="mine")})
    write(checkout, {"python/engine/dirty.py": text(line_1="edited")})
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    target = Target(versions={"engine": "2.0"})
    judged = preview(snapshot, tmp_path / "saved", target)
    assert [(each.change.id, each.standing) for each in judged] == [
        ("engine:commits", Standing.NOT_PREVIEWED),
        ("engine:uncommitted", Standing.NOT_PREVIEWED),
    ]


def test_a_change_that_is_gone_in_part_is_a_conflict(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    both = {
        "python/engine/gone.py": text(line_3="mine"),
        "python/engine/clean.py": text(line_3="m"),
    }
    commit(checkout, "both", both)
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    (judged,) = preview(snapshot, tmp_path / "saved", Target(versions={"engine": "2.0"}))
    assert (judged.standing, judged.conflicts) == (Standing.CONFLICT, ("python/engine/gone.py",))


def test_an_unchanged_file_needs_no_original(tmp_path: Path) -> None:
    site = install(tmp_path / "old", "one", "1.0", {"one.py": "x\n"})
    write(site, {"one.py": "mine\n"})
    new = install(tmp_path / "new", "one", "2.0", {"one.py": "x\n"})
    cache = tmp_path / "cache-of-an-installer"
    cache.hardlink_to(new / "one.py")
    snapshot = find(environment_at(tmp_path / "old"), tmp_path / "saved")
    target = Target(environment=environment_at(tmp_path / "new"))
    assert [e.standing for e in preview(snapshot, tmp_path / "saved", target)] == [Standing.APPLIED]
    reapply(tmp_path / "new", tmp_path / "saved")
    assert (new / "one.py").read_text() == "mine\n"
    assert cache.read_text() == "x\n"


def test_machine_code_of_no_package_is_to_be_built(tmp_path: Path) -> None:
    site = install(tmp_path / "env", "one", "1.0", {"one.py": "x\n"})
    write(site, {"fast/_C.so": "code\n"})
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    (judged,) = preview(snapshot, tmp_path / "saved", Target())
    assert (judged.change.id, judged.standing) == ("site:fast/", Standing.REBUILD)


def test_a_package_from_a_repository_is_told_without_its_key(tmp_path: Path) -> None:
    vcs = {"vcs": "git", "commit_id": "0123456789abcdef"}
    origin = {"url": "https://ada:secret@example.org/one.git", "vcs_info": vcs}
    install(tmp_path / "env", "one", "1.0", {"one.py": "x\n"}, origin=origin)
    released = {"url": "https://example.org/two-1.0-py3-none-any.whl", "archive_info": {}}
    install(tmp_path / "env", "two", "1.0", {"two.py": "x\n"}, origin=released)
    tag = "cp312-cp312-linux_x86_64"
    install(tmp_path / "env", "torch", "2.5.1+cu124", {"torch/a.py": "x\n"}, tag=tag)
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    (change,) = snapshot.changes  # neither the release nor the variant of an index
    assert (change.id, change.kind) == ("wheel:one", Kind.BUILT)
    assert change.evidence == "built from https://example.org/one.git at 0123456789ab"
    offered = Target(versions={"one": "1.0"}, offered={"one": True})
    (judged,) = preview(snapshot, tmp_path / "saved", offered)
    assert judged.standing is Standing.DROP


@pytest.mark.parametrize("layout", ["python", "src", "", "lib/py"])
def test_the_new_environment_imports_the_merged_checkout(tmp_path: Path, layout: str) -> None:
    where = f"{layout}/engine" if layout else "engine"
    checkout = package(tmp_path / "engine", where)
    commit(checkout, "mine", {f"{where}/clean.py": "MINE = True\n" + text(line_1="").lstrip()})
    named = checkout / "python" if layout == "python" else checkout
    install(tmp_path / "old", "engine", "1.0", {}, origin=editable(named))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    venv.create(tmp_path / "new", with_pip=False, symlinks=True)
    installed = {"engine/__init__.py": "", "engine/clean.py": "x = 1\n"}
    install(tmp_path / "new", "engine", "2.0", installed, python=version)
    python = tmp_path / "new/bin/python"

    def imported() -> str:
        program = "import engine; print(engine.__file__)"
        done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True)
        return done.stdout.strip()

    assert "site-packages" in imported()
    find(environment_at(tmp_path / "old"), tmp_path / "saved")
    result = reapply(tmp_path / "new", tmp_path / "saved")
    assert [each.standing for each in result.done] == [Standing.APPLIED]
    assert imported() == str(tmp_path / "new/src/engine" / where / "__init__.py")


def test_edits_meet_a_target_that_is_only_wheels(tmp_path: Path) -> None:
    """So that a plan can say what becomes of them before anything is built."""
    site = install(tmp_path / "old", "one", "1.0", {"a.py": text(), "b.py": text()})
    write(site, {"a.py": text(line_5="mine"), "b.py": text(line_5="mine")})
    snapshot = find(environment_at(tmp_path / "old"), tmp_path / "saved")
    versions = {"one": "2.0"}
    wheels = tmp_path / "wheels"
    wheels.mkdir()

    def standings() -> list[Standing]:
        target = Target(versions=versions, wheels=[wheels])
        return [each.standing for each in preview(snapshot, tmp_path / "saved", target)]

    assert standings() == [Standing.ONLY_THERE] * 2
    wheel(wheels, "one", "2.0", {"a.py": text(line_25="theirs"), "b.py": text(line_5="theirs")})
    assert standings() == [Standing.ONLY_THERE] * 2
    wheel(wheels, "one", "1.0", {"a.py": "not what RECORD says\n", "b.py": text()})
    assert standings() == [Standing.ONLY_THERE, Standing.CONFLICT]
    wheel(wheels, "one", "1.0", {"a.py": text(), "b.py": text()})
    assert standings() == [Standing.APPLIED, Standing.CONFLICT]


def test_two_changes_of_one_name_are_two(tmp_path: Path) -> None:
    install(tmp_path / "env", "one", "1.0", {"one.py": "x\n"})
    write(tmp_path, {"a/start.sh": "a\n", "b/start.sh": "b\n"})
    scripts = [tmp_path / "a/start.sh", tmp_path / "b/start.sh"]
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved", Named(scripts=scripts))
    judged = preview(snapshot, tmp_path / "saved", Target())
    assert [each.change.id for each in judged] == ["script:start.sh", "script:start.sh (2)"]
    saved = [(tmp_path / "saved" / each.change.saved).read_text() for each in judged]
    assert saved == ["a\n", "b\n"]


def test_names_and_messages_that_are_no_utf_8(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    strange = os.fsdecode(b"python/engine/na\xefve file.py")
    write(checkout, {strange: text()})
    git(checkout, "add", "-A")
    (tmp_path / "message").write_bytes(b"na\xefve\n")
    git(checkout, "commit", "-q", "-F", str(tmp_path / "message"))
    write(checkout, {strange: text(line_3="edited"), "a\nb.py": "two lines\n"})
    install(tmp_path / "old", "engine", "1.0", {}, origin=editable(checkout / "python"))
    install(tmp_path / "new", "engine", "2.0", {"engine/__init__.py": ""})
    find(environment_at(tmp_path / "old"), tmp_path / "saved")
    result = reapply(tmp_path / "new", tmp_path / "saved")
    assert [each.standing for each in result.done] == [Standing.APPLIED] * 3
    assert (tmp_path / "new/src/engine" / strange).read_text() == text(line_3="edited")
    assert (tmp_path / "new/src/engine/a\nb.py").read_text() == "two lines\n"


def test_what_environments_bring_by_themselves_is_no_change(tmp_path: Path) -> None:
    site = install(tmp_path / "env", "one", "1.0", {"one.py": "x\n"})
    write(site, {"_virtualenv.py": "", "_virtualenv.pth": "import _virtualenv\n"})
    write(site, {"__pycache__/one.cpython-312.pyc": "compiled\n", "README.txt": "Python's\n"})
    assert find(environment_at(tmp_path / "env"), tmp_path / "saved").changes == ()


def test_links_in_site_packages(tmp_path: Path) -> None:
    site = install(tmp_path / "old", "one", "1.0", {"one.py": "x\n"})
    write(site, {"extra/a.py": "a\n"})
    (site / "extra/b.py").symlink_to("a.py")
    (site / "extra/dead.py").symlink_to("nowhere")
    new = install(tmp_path / "new", "one", "1.0", {"one.py": "x\n"})
    find(environment_at(tmp_path / "old"), tmp_path / "saved")
    reapply(tmp_path / "new", tmp_path / "saved")
    assert sorted(path.name for path in (new / "extra").iterdir()) == ["a.py", "b.py"]


def test_what_a_sparse_checkout_leaves_out_was_not_removed(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    commit(checkout, "docs", {"docs/a.md": "a\n"})
    git(checkout, "tag", "v1.1")
    git(checkout, "sparse-checkout", "set", "python")
    assert not (checkout / "docs").exists()
    write(checkout, {"python/engine/dirty.py": text(line_1="edited")})
    install(tmp_path / "env", "engine", "1.1", {}, origin=editable(checkout / "python"))
    (change,) = find(environment_at(tmp_path / "env"), tmp_path / "saved").changes
    assert change.files == ("python/engine/dirty.py",)


def test_without_git_nothing_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = package(tmp_path / "engine")
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="local changes cannot be looked at"):
        find(environment_at(tmp_path / "env"), tmp_path / "saved")


def test_a_second_change_of_a_file_that_is_gone_is_obsolete_too(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    commit(checkout, "one", {"python/engine/gone.py": text(line_3="mine")})
    commit(checkout, "two", {"python/engine/gone.py": text(line_3="mine", line_4="mine")})
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    snapshot = find(environment_at(tmp_path / "env"), tmp_path / "saved")
    judged = preview(snapshot, tmp_path / "saved", Target(versions={"engine": "2.0"}))
    assert [each.standing for each in judged] == [Standing.OBSOLETE, Standing.OBSOLETE]


def test_what_is_dropped_does_not_take_along_what_stands_on_its_own(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    commit(checkout, "one", {"python/engine/dirty.py": text(line_5="mine")})
    commit(checkout, "two", {"python/engine/dirty.py": text(line_5="mine", line_25="mine")})
    install(tmp_path / "old", "engine", "1.0", {}, origin=editable(checkout / "python"))
    install(tmp_path / "new", "engine", "2.0", {"engine/__init__.py": ""})
    snapshot = find(environment_at(tmp_path / "old"), tmp_path / "saved")
    dropped = Target(dropped=frozenset({snapshot.changes[0].id}))
    result = reapply(tmp_path / "new", tmp_path / "saved", dropped)
    assert [each.standing for each in result.done] == [Standing.DROP, Standing.APPLIED]
    merged = tmp_path / "new/src/engine/python/engine/dirty.py"
    assert merged.read_text() == text(line_25="mine")


def test_an_edit_follows_a_file_that_was_renamed(tmp_path: Path) -> None:
    checkout = package(tmp_path / "engine")
    commit(checkout, "mine", {"python/engine/dirty.py": text(line_5="mine")})
    git(checkout, "checkout", "-q", "main")
    commit(checkout, "moved", {"python/engine/dirty.py": None, "python/engine/moved.py": text()})
    git(checkout, "tag", "v3.0")
    git(checkout, "checkout", "-q", "mine")
    install(tmp_path / "old", "engine", "1.0", {}, origin=editable(checkout / "python"))
    install(tmp_path / "new", "engine", "3.0", {"engine/__init__.py": ""})
    find(environment_at(tmp_path / "old"), tmp_path / "saved")
    result = reapply(tmp_path / "new", tmp_path / "saved")
    assert [each.standing for each in result.done] == [Standing.APPLIED]
    moved = tmp_path / "new/src/engine/python/engine/moved.py"
    assert moved.read_text() == text(line_5="mine")
