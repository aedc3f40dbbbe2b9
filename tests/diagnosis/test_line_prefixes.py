"""Time, rank and level are read off the lines of every server and launcher."""

from __future__ import annotations

import pytest

from alula.diagnosis.lines import Reading, split_prefix

_DAYS = 31 + 10  # 11 February
_SECONDS = _DAYS * 86400 + 10 * 3600 + 22 * 60 + 33.0

LINES = [
    ("[2026-02-11 10:22:33 TP3] boom", _SECONDS, "TP3", ""),
    ("[2026-02-11 10:22:33 DP0 TP3 EP3] boom", _SECONDS, "DP0 TP3 EP3", ""),
    ("[2026-02-11 10:22:33] boom", _SECONDS, "", ""),
    ("(Worker_TP1 pid=123) ERROR 02-11 10:22:33 [executor.py:600] boom", _SECONDS, "TP1", "ERROR"),
    ("(VllmWorker rank=1 pid=1) ERROR 02-11 10:22:33 [x.py:1] boom", _SECONDS, "rank 1", "ERROR"),
    ("(EngineCore_DP0 pid=77) INFO 02-11 10:22:33 [core.py:5] boom", _SECONDS, "", "INFO"),
    ("[rank3]:[E211 10:22:33.500000000 Process.cpp:683] boom", _SECONDS + 0.5, "rank 3", "ERROR"),
    ("[rank3]:[E0211 10:22:33.500000000 Process.cpp:683] boom", _SECONDS + 0.5, "rank 3", "ERROR"),
    ("[02/11/2026-10:22:33] [TRT-LLM] [RANK 2] [E] boom", _SECONDS, "rank 2", "ERROR"),
    ("[TensorRT-LLM][WARNING] boom", None, "", "WARNING"),
    ("node-1:123:456 [3] enqueue.cc:2052 boom", None, "rank 3", ""),
    ("[2026-02-11 10:22:33] node-1:123:456 [3] enqueue.cc:2052 boom", _SECONDS, "rank 3", ""),
    ("2026-02-11T10:22:33.5Z [2026-02-11 10:22:33 TP3] boom", _SECONDS + 0.5, "TP3", ""),
    ("sglang-1  | [2026-02-11 10:22:33] boom", _SECONDS, "", ""),
    ("2026-02-11 10:22:33,500 - sglang.srt - ERROR - boom", _SECONDS + 0.5, "", "ERROR"),
    ("[1,3]<stderr>:boom", None, "rank 3", ""),
    ("3: [2026-02-11 10:22:33] boom", _SECONDS, "rank 3", ""),
    (
        "Capture: 29%|██▊  | 8/28 [00:14<00:25,  1.30s/it][2026-02-11 10:22:33 TP1] boom",
        _SECONDS,
        "TP1",
        "",
    ),
    ("[2026-02-31 10:22:33] boom", None, "", ""),
    ("boom", None, "", ""),
]


@pytest.mark.parametrize(("text", "seconds", "rank", "level"), LINES, ids=[row[0] for row in LINES])
def test_a_prefix_is_taken_off(text: str, seconds: float | None, rank: str, level: str) -> None:
    prefix = split_prefix(text)
    assert prefix == (seconds, rank, level, "boom")


def test_a_line_without_time_or_rank_belongs_to_the_last_one_that_had() -> None:
    reading = Reading()
    reading.read("[2026-02-11 10:22:33 TP3] Traceback (most recent call last):")
    reading.read("KeyError: 12")
    assert (reading.seconds, reading.rank, reading.message) == (_SECONDS, "TP3", "KeyError: 12")


def test_time_goes_on_over_new_year() -> None:
    reading = Reading()
    reading.read("[2026-12-31 23:59:59] old")
    before = reading.seconds
    reading.read("[2027-01-01 00:00:01] new")
    assert before is not None
    assert reading.seconds == before + 2
