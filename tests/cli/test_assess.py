"""`alula assess` as a person meets it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from running import Alula, Process

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
CASE = EXAMPLES / "six-attempts"
MACHINE = ("--machine", CASE / "report.json")
ATTEMPTS = ("--attempts", CASE / "attempts.toml")
CLAIMS = ("--claims", EXAMPLES / "claims-pcie8.toml")
ANSWER = "Not for these failures: CUDA 13.0 opens 0 of 6. First try 4 verify rows (free)."
SITE = "lib/python3.12/site-packages"


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_first_line_answers_and_the_exit_code_says_so(alula: Alula) -> None:
    done = alula("assess", "cuda==13.0", *MACHINE, *ATTEMPTS)
    assert done.out.splitlines()[0] == ANSWER
    assert done.code == 3
    assert not done.err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--gpu", "12.1x8"), 0),
        (("--gpu", "12.0x8"), 3),
        (("flashinfer-python==0.6.17",), 4),
    ],
)
def test_exit_codes(alula: Alula, options: tuple[str, ...], code: int) -> None:
    assert alula("assess", "cuda==13.0", *options, *MACHINE).code == code


def test_it_is_quick_and_changes_nothing(process: Process, tmp_path: Path) -> None:
    command, environment = process
    before, start = fingerprint(EXAMPLES), time.monotonic()
    arguments = [*command, "assess", "cuda==13.0", *MACHINE, *ATTEMPTS, *CLAIMS]
    done = subprocess.run(
        [str(each) for each in arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[0] == ANSWER, done.stderr
    assert time.monotonic() - start < 10
    assert fingerprint(EXAMPLES) == before
    assert not list(tmp_path.iterdir())


def test_torch_is_not_imported(process: Process) -> None:
    code = (
        "import sys\nfrom alula.cli.main import run\n"
        f"run(['assess', 'cuda==13.0', '--machine', {str(CASE / 'report.json')!r}])\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=process[1], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_json_holds_the_evidence_of_every_sentence(alula: Alula) -> None:
    done = alula("assess", "cuda==13.0", *MACHINE, *ATTEMPTS, *CLAIMS, "--json")
    data = json.loads(done.out)
    assert data["answer"] == ANSWER == " ".join(row["cells"][0] for row in data["sentences"])
    assert (data["exit_code"], data["verdict"]) == (3, "not_worth_it")
    rows = [*data["sentences"], *(row for part in data["sections"] for row in part["rows"])]
    for row in rows:
        assert row["evidence"]
        assert all(data["evidence"][key]["source"] for key in row["evidence"])
    cited = {key for row in rows for key in row["evidence"]}
    assert cited == set(data["evidence"]), "nothing is held that nothing stands on"


def test_the_three_forms_say_the_same(alula: Alula) -> None:
    markdown = alula("assess", "cuda==13.0", *MACHINE, *ATTEMPTS, "--markdown").out
    assert markdown.startswith(f"**{ANSWER}**")
    assert "| 1 | 4 verify rows |" in markdown
    refused = alula("assess", "cuda==13.0", *MACHINE, "--markdown", "--json")
    assert refused.code == 2


def test_a_plan_is_kept(alula: Alula, tmp_path: Path) -> None:
    plan = tmp_path / "plan.md"
    asked = ("assess", "cuda==13.0", *MACHINE, *ATTEMPTS, "--document", plan)
    assert alula(*asked).code == 3
    mine = "<!-- mine -->\nAnn has the keys.\n<!-- /mine -->"
    plan.write_text(plan.read_text().replace("## Price", f"{mine}\n\n## Price"))
    alula(*asked, *CLAIMS)
    text = plan.read_text()
    assert mine in text
    assert "claims-pcie8.toml" in text
    assert text.count("`cuda==13.0`: Not for these failures") == 1
    plan.write_text("mine alone")
    assert alula(*asked).code == 2
    assert plan.read_text() == "mine alone"


def test_local_changes_of_a_named_environment_are_at_stake(alula: Alula, tmp_path: Path) -> None:
    site = tmp_path / "env" / SITE
    site.mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    (site / "extra.py").write_text("changed = True\n")
    before = fingerprint(tmp_path)
    machine = ("--machine", "8x-rtx-pro-6000", "--env", tmp_path / "env")
    done = alula("assess", "cuda==13.0", *machine, "--json")
    (price,) = (each for each in json.loads(done.out)["sections"] if each["title"] == "Its price")
    told = {row["cells"][0]: row["cells"][1] for row in price["rows"]}
    assert told["local changes at stake"].startswith("1: ")
    assert "extra.py" in told["local changes at stake"]
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no change was named"),
        (("cuda",), "is not understood"),
        (("cuda==13.0", "--plan", CASE / "plan.toml"), "named in one place"),
        (("cuda==13.0", "--attempts", "none.toml"), "none.toml"),
        (("cuda==13.0", "--claims", "none.toml"), "none.toml"),
        (("cuda==13.0", "--env", "/"), "exclude each other"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    alula: Alula, arguments: tuple[str, ...], said: str
) -> None:
    done = alula("assess", *arguments, *MACHINE)
    assert done.code == 2
    assert said in done.err
    assert not done.out
