"""Keys, limits, draining, death and hanging of the engine."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from alula.errors import AlulaError, LengthError, ResourceError, ShortageError, UsageError
from alula.server.messages import Problem
from alula.server.serve import ServerOptions, ServingError
from serving import ServerProcess, events, wait_for

BODY = {"model": "model", "prompt": "Wings", "max_tokens": 900, "ignore_eos": True}
BODY_OF_TWO: Any = {"model": "model", "prompt": "Wings", "max_tokens": 2}
IDLE = 'alula_cache_pages{state="in_use"} 0.0'
CHAT = "/v1/chat/completions"


def post(server: ServerProcess, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=BODY | fields, timeout=60)


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


class Streaming:
    """An endless answer that is being read."""

    def __init__(self, server: ServerProcess, key: str = "none", **fields: Any) -> None:
        self._client = httpx.Client(timeout=60, headers={"Authorization": f"Bearer {key}"})
        body = BODY | fields | {"stream": True}
        request = self._client.build_request("POST", server.url + "/v1/completions", json=body)
        self._response = self._client.send(request, stream=True)
        self._events = events(self._response)
        next(self._events)

    def rest(self) -> list[str]:
        return list(self._events)

    def __enter__(self) -> Streaming:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._client.close()


def error_of(event: str) -> Any:
    return json.loads(event)["error"]


def test_leaving_frees_the_pages_at_once(server: ServerProcess) -> None:
    with Streaming(server):
        wait_for(lambda: server.metric("alula_running") == 1, 5, "a running sample")
        assert IDLE not in server.get("/metrics").text
    wait_for(lambda: IDLE in server.get("/metrics").text, 5, "the end of the sample")


def test_leaving_a_whole_answer_frees_it_too(server: ServerProcess) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + "/v1/completions", json=BODY | {"n": 4}, timeout=0.3)
    wait_for(lambda: server.metric("alula_running") == 0, 5, "the end of the samples")
    assert 'alula_requests_total{outcome="disconnected"}' in server.get("/metrics").text


def test_metrics_tell_what_happened(server: ServerProcess) -> None:
    before = server.metric("alula_generated_tokens")
    post(server, max_tokens=40, temperature=0)
    assert server.metric("alula_generated_tokens") == before + 40
    for name in (
        "alula_waiting",
        "alula_time_to_first_token_seconds_count",
        "alula_inter_token_latency_seconds_count",
        "alula_round_tokens",
        "alula_rounds_by_nodes",
        "alula_drafted",
        "alula_accepted",
        "alula_prefix_hits",
    ):
        server.metric(name)
    assert server.metric("alula_round_tokens") >= server.metric("alula_rounds") > 0
    assert server.metric("alula_launches") >= 10
    if not torch.cuda.is_available():
        assert 'way="no graphs on this device"' in server.get("/metrics").text


def test_bodies_that_are_no_request_are_refused(server: ServerProcess) -> None:
    for body in (b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b"{}"):
        found = httpx.post(server.url + CHAT, content=body)
        assert found.status_code == 400, body[:10]
        assert found.json()["error"]["type"] == "invalid_request_error"


@pytest.fixture(scope="module")
def narrow(tool_model: Path) -> Any:
    options = ("--max-queue", "2", "--max-sequences", "1", "--max-body", "2000")
    with ServerProcess(
        tool_model,
        *options,
        *("--api-key", "first", "--api-key", "second", "--cors-origin", "http://here"),
        *("--speculation", "off", "--dtype", "float32"),
    ) as started:
        yield started


def test_keys_are_needed_where_they_are_set(narrow: ServerProcess) -> None:
    for key, status in (("first", 200), ("second", 200), ("third", 401), ("firs", 401)):
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(narrow.url + "/v1/models", headers=headers).status_code == status
    assert narrow.get("/metrics").status_code == 401
    assert narrow.get("/health").status_code == narrow.get("/ready").status_code == 200


def test_large_bodies_get_413(narrow: ServerProcess) -> None:
    headers = {"Authorization": "Bearer first"}
    long = json.dumps(BODY | {"prompt": "x" * 3000}).encode()
    for content in (long, iter([long[:1500], long[1500:]])):
        found = httpx.post(narrow.url + "/v1/completions", content=content, headers=headers)
        assert found.status_code == 413
        assert "2000 bytes" in found.json()["error"]["message"]


def test_a_full_queue_gets_429(narrow: ServerProcess) -> None:
    with narrow.client("first") as client:
        with Streaming(narrow, "first"):
            asking = [
                in_background(lambda: client.completions.create(**BODY_OF_TWO)) for _ in range(2)
            ]
            wait_for(lambda: waiting(narrow) == 2, 10, "a full queue")
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**BODY_OF_TWO)
            assert caught.value.response.headers["Retry-After"]
        for thread, found in asking:
            thread.join()
            assert found[0].usage.completion_tokens == 2


def waiting(server: ServerProcess) -> float:
    found = httpx.get(server.url + "/metrics", headers={"Authorization": "Bearer first"}).text
    return float(found.split("\nalula_waiting ")[1].split()[0])


def test_every_request_has_one_line_in_the_log(narrow: ServerProcess) -> None:
    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in narrow.said().splitlines() if line.startswith("{")]

    before = len(lines())
    headers = {"Authorization": "Bearer first"}
    url = narrow.url + "/v1/completions"
    statuses = [
        httpx.post(url, json=body, headers=sent).status_code
        for body, sent in (
            (BODY_OF_TWO | {"user": "me"}, headers),
            (BODY_OF_TWO | {"mystery": 1}, headers),
            (BODY_OF_TWO, {}),
        )
    ]
    assert statuses == [200, 400, 401]
    answered, refused, unknown = lines()[before:]
    assert (answered["outcome"], answered["tokens"], answered["user"]) == ("ok", 2, "me")
    assert (refused["status"], refused["reason"]) == (400, "mystery is not supported")
    assert unknown["status"] == 401


def test_refusals_are_counted(server: ServerProcess) -> None:
    def refused() -> float:
        found = re.search(r'requests_total{outcome="refused"} (\S+)', server.get("/metrics").text)
        return float(found[1]) if found else 0.0

    before = refused()
    for fields in ({"mystery": 1}, {"n": 1000}, {"guided_regex": "["}, {"model": "other"}):
        post(server, **fields)
    assert refused() == before + 4


def test_only_named_origins_may_call(narrow: ServerProcess, server: ServerProcess) -> None:
    for who, origin, allowed in (
        (narrow, "http://here", "http://here"),
        (narrow, "http://there", None),
        (server, "http://here", None),
    ):
        found = httpx.get(who.url + "/health", headers={"Origin": origin})
        assert found.headers.get("access-control-allow-origin") == allowed


def test_a_stopped_engine_ends_the_server_with_its_stacks(tool_model: Path) -> None:
    options = ("--hang-timeout", "2", "--speculation", "off", "--dtype", "float32")
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tool_model, *options))
        running = stack.enter_context(Streaming(server))
        server.engine.suspend()
        seconds = wait_for(lambda: server.get("/health").status_code == 503, 10, "red")
        assert seconds < 4
        *_, error, done = running.rest()
        assert "hangs" in error_of(error)["message"]
        assert done == "[DONE]"
        assert server.process.wait(20) == 1
        said = server.said()
        folder = Path(said.split("the stacks are in ")[1].split()[0])
        assert "engine_process.py" in (folder / "stacks-0.txt").read_text()
        assert "asyncio" in (folder / "stacks-http.txt").read_text()


@pytest.fixture(scope="module")
def tight(tool_model: Path) -> Iterator[ServerProcess]:
    """Little room, a full disk for the log, and a way to come back."""
    small = ("--cache-tokens", "512", "--max-length", "256", "--max-sequences", "4")
    options = ("--speculation", "off", "--dtype", "float32", "--log-file", "/dev/full")
    with ServerProcess(tool_model, *small, *options, "--restart", "--hang-timeout", "2") as started:
        yield started


def test_a_full_cache_costs_no_answer(tight: ServerProcess, server: ServerProcess) -> None:
    fields = {"max_tokens": 150, "n": 4, "seed": 1, "temperature": 1.0}
    crowded, roomy = (post(each, **fields).json() for each in (tight, server))
    assert crowded["choices"] == roomy["choices"]
    assert tight.metric("alula_preemptions") > 0


def test_a_dead_engine_is_told_of_and_restarted(tight: ServerProcess) -> None:
    with ExitStack() as stack:
        running = [stack.enter_context(Streaming(tight, max_tokens=250)) for _ in range(4)]
        thread, waiting = in_background(lambda: post(tight, max_tokens=9))
        wait_for(lambda: tight.metric("alula_waiting") >= 1, 10, "a waiting request")
        killed = time.monotonic()
        tight.engine.send_signal(signal.SIGKILL)
        thread.join()
        assert time.monotonic() - killed < 2
        assert waiting[0].status_code == 503
        assert "SIGKILL" in waiting[0].json()["error"]["message"]
        for stream in running:
            *_, error, done = stream.rest()
            assert error_of(error)["type"] == "server_error"
            assert done == "[DONE]"
        assert tight.get("/health").status_code == 503
        assert tight.get("/ready").status_code == 503
    wait_for(lambda: tight.get("/ready").status_code == 200, 60, "the new engine")
    assert tight.get("/health").json()["status"] == "green"
    assert post(tight, max_tokens=3).status_code == 200


def test_a_hung_engine_is_restarted_too(tight: ServerProcess) -> None:
    tight.engine.suspend()
    wait_for(lambda: tight.get("/health").status_code == 503, 10, "red")
    wait_for(lambda: tight.get("/ready").status_code == 200, 60, "the new engine")
    assert post(tight, max_tokens=3).status_code == 200


def test_sigterm_drains(tool_model: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tool_model, "--dtype", "float32"))
        engine = server.engine
        running = stack.enter_context(Streaming(server, max_tokens=150))
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.get("/ready").status_code == 503, 5, "the end of readiness")
        refused = post(server)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        *_, last, done = running.rest()
        assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert done == "[DONE]"
        assert server.process.wait(20) == 0
        assert not engine.is_running()


@pytest.mark.slow
def test_a_slow_reader_gets_all_of_its_answer_while_draining(tool_model: Path) -> None:
    """Long after the engine has written it, and more than the sockets hold."""
    body = BODY | {"n": 8, "logprobs": 20, "stream": True}
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: model\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    options = ("--dtype", "float32", "--speculation", "off")
    with ServerProcess(tool_model, *options) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port)) as reader:
            reader.sendall(head.encode() + content)
            reader.recv(100)
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.metric("alula_running") == 0, 60, "the engine's end")
            time.sleep(4)
            assert server.process.poll() is None
            last = b""
            while data := reader.recv(1 << 20):
                last = last[-100:] + data
        assert b"data: [DONE]" in last
        assert server.process.wait(20) == 0


SHORT = """
import sys
if "alula.server.engine_process" in sys.orig_argv:
    import torch
    from alula.engine.runner import Runner
    compute = Runner._compute

    def compute_or_run_short(self, launch, *rest):
        if len(launch.ids) > 60:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 846.00 MiB.")
        return compute(self, launch, *rest)

    Runner._compute = compute_or_run_short
"""


def test_a_launch_short_of_memory_ends_those_in_it_and_nobody_else(
    tool_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the server's fault and may pass, so that to try again makes sense."""
    (tmp_path / "sitecustomize.py").write_text(SHORT)
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--dtype", "float32", "--speculation", "off", "--max-sequences", "1")
    with ServerProcess(tool_model, *options) as server:
        with Streaming(server, max_tokens=300):
            long, refused = in_background(lambda: post(server, prompt=[5] * 100, max_tokens=2))
            wait_for(lambda: server.metric("alula_waiting") == 1, 5, "the long prompt")
            waiting, answered = in_background(lambda: post(server, max_tokens=2))
            wait_for(lambda: server.metric("alula_waiting") == 2, 5, "the short prompt")
        long.join()
        waiting.join()
        assert (refused[0].status_code, refused[0].headers["retry-after"]) == (503, "1")
        assert (
            "100 prompt tokens; 846.00 MiB more were asked" in refused[0].json()["error"]["message"]
        )
        assert answered[0].status_code == 200
        assert post(server, max_tokens=2).status_code == 200


@pytest.mark.parametrize("kind", [UsageError, LengthError, ResourceError, ShortageError])
def test_the_server_ends_with_the_code_of_what_ended_its_engine(kind: type[AlulaError]) -> None:
    assert ServingError(Problem.of(kind("a", "b", "c"))).exit_code == kind.exit_code > 1


@pytest.mark.parametrize("key", ["", "  ", "naïve", "two words"])
def test_keys_that_no_client_can_send_are_refused(key: str) -> None:
    with pytest.raises(UsageError, match="API key"):
        ServerOptions(api_keys=("good", key))
