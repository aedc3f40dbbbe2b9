"""A machine as it is described on the command line."""

from __future__ import annotations

import pytest

from alula.errors import UsageError
from alula.machine.whatif import Gpus, parse_what_if


def test_everything_at_once() -> None:
    found = parse_what_if("8x-rtx-pro-6000", ["12.0x8", "h100"], "590.48.01", "pcie")
    assert found.machine == Gpus("rtx-pro-6000", 8)
    assert found.gpus == (Gpus("12.0", 8), Gpus("h100", None))
    assert (found.driver, found.links, found.report) == ("590.48.01", "pcie", None)
    assert [gpus.is_capability for gpus in found.gpus] == [True, False]


def test_a_report_is_told_from_a_name() -> None:
    assert parse_what_if("report.json", (), None, None).report == "report.json"


def test_a_name_may_hold_an_x() -> None:
    assert parse_what_if(None, ["rtx-pro-6000x4"], None, None).gpus == (Gpus("rtx-pro-6000", 4),)


@pytest.mark.parametrize(
    ("machine", "gpu", "driver", "flag"),
    [
        ("8 x h100", None, None, "--machine"),
        (None, "h100x0", None, "--gpu"),
        (None, "h100 x8", None, "--gpu"),
        (None, None, "latest", "--driver"),
    ],
)
def test_other_spellings_are_refused(
    machine: str | None, gpu: str | None, driver: str | None, flag: str
) -> None:
    with pytest.raises(UsageError, match=flag):
        parse_what_if(machine, [gpu] if gpu else (), driver, None)
