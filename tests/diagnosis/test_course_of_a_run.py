"""The first failure in time is the cause, whatever is printed around it."""

from __future__ import annotations

import gzip
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.diagnosis.answer import as_json, escaped, exit_code
from alula.diagnosis.cause import Certainty, Diagnosis
from alula.diagnosis.diagnose import diagnose
from alula.diagnosis.facts import Facts
from failing_logs import failing, stamp, starting, write

KEY = "KeyError: 12"
WATCHDOG = (
    "[rank{0}]:[E211 10:{1:02d}:00.000000000 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE"
)
READY = "[2026-02-11 10:05:00] The server is fired up and ready to roll!"
DECODE = "{} Decode batch. #running-req: 1, gen throughput (token/s): {}, #queue-req: 0"
HARMLESS = (
    "[2026-02-11 10:06:00 TP0] Using default MoE kernel config. Performance might be sub-optimal!",
    "[2026-02-11 10:06:00 TP1] Custom allreduce is disabled because it's not supported on more "
    "than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True",
    'INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
    "ERROR 02-11 10:06:00 [serving.py:9] Error in preprocessing prompt inputs",
    "Traceback (most recent call last):",
    '  File "/opt/sglang/srt/entrypoints/http_server.py", line 9, in generate',
    "ValueError: The input is longer than the model's context length (300000 > 262144).",
    "[2026-02-11 10:06:00] torch.distributed.elastic.multiprocessing.redirects: NOTE: Redirects "
    "are currently not supported",
    "error: XDG_RUNTIME_DIR not set in the environment.",
    "INFO 02-11 10:06:00 [shm_broadcast.py:466] No available shared memory broadcast block found "
    "in 60 seconds. This typically happens when some processes compile.",
    "404 Client Error: Not Found for url: https://example.org/m/resolve/main/generation_config.json",
    "node1:77:91 [3] NCCL INFO NCCL_ALGO set by environment to Ring.",
    "Exception ignored in: <function Pool.__del__ at 0x7f>",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "\x1b[33mWARNING\x1b[0m 02-11 10:06:00 [utils.py:1] error budget of probes: 0 errors, 0 failed",
    "[2026-02-11 10:06:00 TP2] TypeError: unexpected keyword in a request",
)  # fmt: skip


def name_of(diagnosis: Diagnosis) -> str | None:
    return None if diagnosis.cause is None else diagnosis.cause.name


def healthy(lines: int) -> list[str]:
    memory = "INFO 02-11 10:00:06 [gpu_worker.py:298] Available KV cache memory: 9.77 GiB"
    text = [*starting(phase="capture"), memory, READY]
    while len(text) < lines:
        second = 310 + len(text) // 40
        text += [DECODE.format(stamp(second, rank), 80.5 + rank) for rank in range(4)]
        text += HARMLESS
    return [*text, DECODE.format("[2026-02-11 11:55:00 TP0]", 80.5)]


def test_a_long_healthy_log_full_of_alarming_lines_has_no_cause(tmp_path: Path) -> None:
    lines = healthy(200_000)
    diagnosis = diagnose([write(tmp_path, "\n".join(lines))])
    assert len(lines) >= 200_000
    assert diagnosis.cause is None
    assert exit_code(diagnosis) == 0
    notes = {
        note.event.signature.name for note in diagnosis.notes if note.event and note.event.signature
    }
    assert {"kernel-config", "custom-allreduce-pcie", "bad-request", "client-gone"} <= notes


def test_the_same_log_with_a_failure_at_its_end_has_it_for_its_cause(tmp_path: Path) -> None:
    last = "[2026-02-11 12:00:00 TP1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    diagnosis = diagnose([write(tmp_path, "\n".join([*healthy(2000), last]))])
    assert diagnosis.cause is not None
    assert diagnosis.cause.ruling.failure_class == "oom_runtime"
    assert diagnosis.cause.event is not None
    assert diagnosis.cause.event.rank == "TP1"


def test_a_disabled_feature_is_a_cause_only_where_it_was_asked_for(tmp_path: Path) -> None:
    line = (
        "[2026-02-11 10:00:09 TP0] torch symmetric memory multicast operations are not supported."
    )
    log = write(tmp_path, "\n".join([*starting(), line, READY]))
    assert diagnose([log]).cause is None
    asked = diagnose(
        [log], Facts({"command": ("serve --enable-torch-symm-mem",), "links": ("pcie",)})
    )
    assert name_of(asked) == "symm-mem-multicast"
    assert asked.cause is not None
    assert asked.cause.certainty is Certainty.CERTAIN


def test_the_rank_that_failed_first_is_the_root_and_the_others_the_cascade(tmp_path: Path) -> None:
    folder = tmp_path
    first = write(folder, "\n".join([*starting(), WATCHDOG.format(0, 30)]), "rank0.log")
    second = write(folder, "\n".join([*starting(), WATCHDOG.format(1, 31)]), "rank1.log")
    key = failing(KEY, "symm-mem", ranks=1)
    third = write(folder, "\n".join([*starting(), key]), "rank2.log")
    for order in ([first, second, third], [third, first, second], [second, third, first]):
        diagnosis = diagnose(order)
        assert name_of(diagnosis) == "symm-mem-key"
        assert diagnosis.cause is not None
        assert diagnosis.cause.event is not None
        assert diagnosis.cause.event.file == third
        watchdogs = [event for event in diagnosis.cascade if event.file in (first, second)]
        assert [event.file for event in watchdogs] == [first, second]


def test_of_files_without_times_the_one_that_broke_is_the_root(tmp_path: Path) -> None:
    waited = write(tmp_path, "Watchdog caught collective operation timeout: WorkNCCL(", "0.log")
    broke = write(tmp_path, "torch.OutOfMemoryError: CUDA out of memory.", "1.log")
    for order in ([waited, broke], [broke, waited]):
        assert name_of(diagnose(order)) == "cuda-oom"


def test_two_logs_swapped_swap_their_causes(tmp_path: Path) -> None:
    one = write(tmp_path, failing(KEY, "symm-mem"), "one.log")
    other = write(tmp_path, failing("OSError: [Errno 98] Address already in use"), "other.log")
    assert [name_of(diagnose([log])) for log in (one, other)] == ["symm-mem-key", "port-in-use"]
    text = one.read_text(), other.read_text()
    one.write_text(text[1])
    other.write_text(text[0])
    assert [name_of(diagnose([log])) for log in (one, other)] == ["port-in-use", "symm-mem-key"]


def test_a_later_start_never_replaces_the_first_verdict(tmp_path: Path) -> None:
    again = failing(
        "ValueError: Free memory on device cuda:0 (1/22 GiB) on startup is less than desired GPU "
        "memory utilization"
    ).replace("2026-02-11 10:", "2026-02-11 11:")
    diagnosis = diagnose([write(tmp_path, failing(KEY, "symm-mem") + again * 3)])
    assert name_of(diagnosis) == "symm-mem-key"
    assert any("started 4 times" in note.text for note in diagnosis.notes)
    assert "free-memory" in {event.signature.name for event in diagnosis.cascade if event.signature}


def test_a_failure_that_the_same_start_survives_is_a_note(tmp_path: Path) -> None:
    lines = [*starting(), "RuntimeError: Ninja build failed. Falling back to torch.", READY]
    diagnosis = diagnose([write(tmp_path, "\n".join(lines))])
    assert diagnosis.cause is None
    assert any("ninja-failed" in note.text for note in diagnosis.notes)
    lines.insert(-1, "[2026-02-11 10:04:00] Received sigquit from a child process. It usually")
    assert name_of(diagnose([write(tmp_path, "\n".join(lines))])) == "ninja-failed"


def test_the_words_of_another_rank_a_second_later_are_no_sign_of_life(tmp_path: Path) -> None:
    oom = "[2026-02-11 10:10:00 TP1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    lines = [*starting(), READY, oom, DECODE.format(stamp(601, 0), 80)]
    assert name_of(diagnose([write(tmp_path, "\n".join(lines))])) == "cuda-oom"
    lines.append(DECODE.format(stamp(700, 1), "0.00"))
    assert name_of(diagnose([write(tmp_path, "\n".join(lines))])) == "cuda-oom"
    lines.append(DECODE.format(stamp(701, 1), "61.5"))
    assert diagnose([write(tmp_path, "\n".join(lines))]).cause is None


def test_an_unknown_failure_quotes_the_likeliest_line(tmp_path: Path) -> None:
    diagnosis = diagnose([write(tmp_path, failing("RuntimeError: the flux is out of phase"))])
    assert exit_code(diagnosis) == 4
    assert diagnosis.cause is not None
    assert diagnosis.cause.certainty is Certainty.UNKNOWN
    assert diagnosis.cause.event is not None
    assert diagnosis.cause.event.text == "RuntimeError: the flux is out of phase"


def test_a_known_failure_is_not_hidden_by_those_that_waited_and_an_unknown_one(
    tmp_path: Path,
) -> None:
    oom = "[2026-02-11 12:00:00 TP1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    lines = ["RuntimeError: the flux is out of phase", WATCHDOG.format(1, 30), oom]
    diagnosis = diagnose([write(tmp_path, "\n".join([*starting(), *lines]))])
    assert name_of(diagnosis) == "cuda-oom"


def test_an_unknown_error_is_not_blamed_on_those_that_waited_for_it(tmp_path: Path) -> None:
    lines = ["RuntimeError: the flux is out of phase", WATCHDOG.format(1, 30)]
    diagnosis = diagnose([write(tmp_path, "\n".join([*starting(), *lines]))])
    assert exit_code(diagnosis) == 4
    assert [event.signature.name for event in diagnosis.cascade if event.signature] == [
        "nccl-watchdog"
    ]


@pytest.mark.parametrize(
    ("status", "failure_class", "code"),
    [(137, "host_oom", 3), (-9, "host_oom", 3), (135, "host_oom", 3), (124, "hang", 3),
     (1, "unknown", 4), (0, None, 0), (143, None, 0), (-15, None, 0), (130, None, 0)],
)  # fmt: skip
def test_an_exit_status_speaks_where_the_log_is_silent(
    status: int, failure_class: str | None, code: int, tmp_path: Path
) -> None:
    log = write(tmp_path, "\n".join([*starting(), "INFO loading"]))
    diagnosis = diagnose([log], exit_code=status)
    found = diagnosis.cause.ruling.failure_class if diagnosis.cause else None
    assert (found, exit_code(diagnosis)) == (failure_class, code)


def test_a_run_that_hung_names_how_far_it_came(tmp_path: Path) -> None:
    text = "INFO 02-11 10:00:12 [pynccl.py:111] vLLM is using nccl==2.28.9\n"
    cause = diagnose([write(tmp_path, text)], exit_code=124).cause
    assert cause is not None
    assert (cause.ruling.failure_class, cause.ruling.layer) == ("hang", "process")
    assert cause.because[-1].endswith("distributed")
    assert cause.event is not None
    assert cause.event.number == 1


def test_memory_that_ran_out_is_of_the_phase_of_its_own_rank(tmp_path: Path) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    lines = [*starting(phase="weights"), f"{stamp(9, 0)} Load weight end. avail mem=3 GB"]
    for rank, failure_class in ((0, "oom_kv"), (2, "oom_load")):
        cause = diagnose([write(tmp_path, "\n".join([*lines, f"{stamp(10, rank)} {oom}"]))]).cause
        assert cause is not None
        assert cause.ruling.failure_class == failure_class


def test_a_traceback_of_long_ago_says_nothing_of_an_error(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "/opt/tokenizer.py", line 3, in f']
    late = diagnose([write(tmp_path, "\n".join([*lines, *["."] * 200, KEY]))], exit_code=1)
    assert name_of(late) == "symm-mem-key"
    at_once = diagnose([write(tmp_path, "\n".join([*lines, KEY]))], exit_code=1)
    assert name_of(at_once) == ""


def test_a_crash_loop_of_any_length_keeps_little(tmp_path: Path) -> None:
    once = failing("RuntimeError: the flux is out of phase") + READY + "\n"
    diagnosis = diagnose([write(tmp_path, once * 3000)], exit_code=1)
    assert exit_code(diagnosis) == 4
    assert len(diagnosis.cascade) < 100
    assert any("started 3000 times" in note.text for note in diagnosis.notes)


def test_a_run_that_somebody_ended_did_not_fail(tmp_path: Path) -> None:
    text = failing("RuntimeError: the flux is out of phase")
    assert exit_code(diagnose([write(tmp_path, text)], exit_code=143)) == 0


def test_a_log_says_more_than_its_exit_status(tmp_path: Path) -> None:
    log = write(tmp_path, failing(KEY, "symm-mem"))
    assert name_of(diagnose([log], exit_code=137)) == "symm-mem-key"


@pytest.mark.parametrize(
    "form", ["colours", "carriage returns", "gzip", "utf-16", "docker", "crlf"]
)
def test_a_log_is_read_in_whatever_form_it_was_kept(form: str, tmp_path: Path) -> None:
    text = failing(KEY, "symm-mem")
    path = tmp_path / "server.log"
    if form == "colours":
        text = "\n".join(
            f"\x1b[31;1m{line[:9]}\x1b[0m{line[9:]}\x1b[K" for line in text.split("\n")
        )
    elif form == "carriage returns":
        text = text.replace(KEY, f"Loading: 10%\rLoading: 20%\r{KEY}")
    elif form == "crlf":
        text = text.replace("\n", "\r\n")
    elif form == "docker":
        text = "\n".join(f"2026-02-11T10:00:00.1Z {line}" for line in text.split("\n"))
    data = text.encode("utf-16" if form == "utf-16" else "utf-8")
    path.write_bytes(gzip.compress(data) if form == "gzip" else data)
    diagnosis = diagnose([path])
    assert name_of(diagnosis) == "symm-mem-key"
    assert diagnosis.cause is not None
    assert diagnosis.cause.event is not None
    plain = failing(KEY, "symm-mem").split("\n").index(KEY) + 1
    assert diagnosis.cause.event.number == plain
    assert diagnosis.cause.event.frames[-1].endswith("torch_symm_mem.py:60")


def test_what_is_shown_of_a_log_holds_no_control_character(tmp_path: Path) -> None:
    evil = "RuntimeError: \x07\x9b31m\u202e bell\x00 and \x1b]0;title"
    diagnosis = diagnose([write(tmp_path, failing(evil))])
    shown = as_json(diagnosis)["cause"]["text"]
    assert shown.startswith("RuntimeError: \\x07\\x9b31m\\u202e bell\\x00 and ")
    assert all(character.isprintable() for character in shown)


@given(st.text())
def test_escaped_text_is_visible_and_bounded(text: str) -> None:
    shown = escaped(text)
    assert not any(unicodedata.category(character).startswith("C") for character in shown)
    assert len(shown) <= 401 * len("\\U0010ffff")


@given(st.binary(max_size=3000))
def test_bytes_of_any_kind_are_no_reason_to_stop(data: bytes) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.log"
        path.write_bytes(b"server_args=\n" + data + b"\nKeyError: 12\n")
        assert exit_code(diagnose([path], exit_code=1)) in (3, 4)
