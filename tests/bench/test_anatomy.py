"""A round is taken apart by what its kernels are called and by where they stand."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree

import pytest

from alula.bench.anatomy import Kernel, dissect, parted
from alula.bench.anatomy_view import bar, lines, svg
from alula.bench.kinds import (
    ACTIVATION,
    ATTENTION,
    DRAFTER,
    GAPS,
    LINEAR,
    NORM,
    OTHER,
    ROPE,
    SAMPLING,
    WALK,
    by_name,
    kinds,
)
from alula.errors import MachineError

COPY = "void at::native::vectorized_elementwise_kernel<4, FillFunctor>"
ROUND = [
    ("prepare_kernel", OTHER),
    ("rms_norm_kernel", NORM),
    ("linear_kernel", LINEAR),
    ("rotate_kernel", ROPE),
    ("attention_kernel", ATTENTION),
    ("linear_kernel", LINEAR),
    ("silu_and_mul_kernel", ACTIVATION),
    ("linear_kernel", LINEAR),
    ("choose_kernel", SAMPLING),
    (COPY, SAMPLING),
    ("advance_kernel", WALK),
    (COPY, WALK),
    ("commit_kernel", WALK),
    ("catch_up_kernel", DRAFTER),
    ("linear_kernel", DRAFTER),
    ("attention_kernel", DRAFTER),
    ("void at::native::sbtopk::gatherTopK", DRAFTER),
]


def kernels(start: float = 0.0, us: float = 10.0) -> list[Kernel]:
    return [Kernel(name, start + 12.0 * n, us) for n, (name, _) in enumerate(ROUND)]


def test_kinds_follow_names_and_places() -> None:
    assert kinds([name for name, _ in ROUND]) == [kind for _, kind in ROUND]


def test_a_plain_round_has_no_drafter() -> None:
    assert DRAFTER not in kinds([name for name, _ in ROUND[:13]])


def test_a_walk_of_its_own_begins_the_walk() -> None:
    names = [name for name, _ in ROUND]
    assert kinds([*names[:10], "walk_kernel", COPY, *names[10:]])[10:13] == [WALK] * 3


def test_without_a_walk_names_decide() -> None:
    names = [name for name, _ in ROUND if name != "advance_kernel"]
    assert kinds(names) == [by_name(name) for name in names]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", LINEAR),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32", LINEAR),
        ("add_rms_norm_kernel", NORM),
        ("search_kernel", SAMPLING),
        ("Memcpy DtoD (Device -> Device)", OTHER),
    ],
)
def test_a_name_tells_a_kind(name: str, kind: str) -> None:
    assert by_name(name) == kind


def test_times_add_up_to_the_round() -> None:
    rounds = [kernels(us=us) for us in (10.0, 11.0, 90.0)]
    anatomy = dissect("tiny", rounds, us=200.0, limit_us=50.0)
    parts = {part.kind: part for part in anatomy.parts}
    assert parts[LINEAR].us == 33.0 and parts[LINEAR].launches == 3
    assert parts[GAPS].us == 200.0 - 11.0 * len(ROUND)
    assert sum(part.us for part in anatomy.parts) == pytest.approx(anatomy.us)
    assert anatomy.launches == len(ROUND)
    assert anatomy.of_limit == 0.25
    assert anatomy.as_json()["of_memory_limit"] == 0.25
    assert parts[SAMPLING].kernels == {"choose_kernel": 11.0, COPY: 11.0}


def test_kernels_that_take_longer_than_the_round_leave_no_gaps() -> None:
    parts = dissect("tiny", [kernels()], us=1.0, limit_us=1.0).parts
    assert parts[-1].us == 0.0


def test_replays_are_told_apart_by_time() -> None:
    seen = [kernel for replay in range(5) for kernel in kernels(1000.0 * replay)]
    random.Random(0).shuffle(seen)
    rounds = parted(seen, 5)
    assert [[kernel.name for kernel in one] for one in rounds] == [[n for n, _ in ROUND]] * 5


@pytest.mark.parametrize("seen", [[], kernels()[:3], kernels() + kernels(500.0)[::-1][:15]])
def test_replays_that_are_not_alike_are_refused(seen: list[Kernel]) -> None:
    with pytest.raises(MachineError, match="cannot be taken apart"):
        parted(seen, 2)


def test_a_kernel_that_begins_early_is_not_charged_for_what_it_waits_for() -> None:
    """Each begins while the one before runs; the third ends before the second does."""
    spans = [(0.0, 10.0), (2.0, 14.0), (3.0, 5.0), (20.0, 4.0)]
    seen = [Kernel(f"k{n}", start, us) for n, (start, us) in enumerate(spans)]
    (one,) = parted(seen, 1)
    assert [kernel.us for kernel in one] == [10.0, 6.0, 0.0, 4.0]
    anatomy = dissect("x", [one], us=26.0, limit_us=13.0)
    assert {part.kind: part.us for part in anatomy.parts} == {OTHER: 20.0, GAPS: 6.0}


@pytest.mark.parametrize("width", [10, 72])
def test_the_bar_is_whole(width: int) -> None:
    anatomy = dissect("tiny", [kernels()], us=200.0, limit_us=50.0)
    drawn = bar(anatomy, width)
    assert len(drawn) == width
    assert list(dict.fromkeys(drawn)) == sorted(set(drawn), key=drawn.index)


def test_every_kind_has_its_line_and_its_rectangle() -> None:
    anatomy = dissect("a < b", [kernels()], us=200.0, limit_us=50.0)
    told = lines(anatomy)
    picture = ElementTree.fromstring(svg(anatomy))
    titles = [title.text or "" for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    for part in anatomy.parts:
        assert any(part.kind in line for line in told)
        assert any(title.startswith(f"{part.kind}: {part.us:.1f} us") for title in titles)
    assert "25 % of the memory limit" in told[-1]
    widths = [float(rect.get("width", 0)) for rect in picture.iter() if len(rect)]
    assert sum(width for width in widths if width) == pytest.approx(728, abs=0.1)
