"""Requests of every kind side by side: each gets what it gets alone."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from serving import ServerProcess, events
from test_structured import OTHER, SCHEMA, TOOL

TALK = {"messages": [{"role": "user", "content": "A bird, please."}]}
NAMED = {"name": "bird", "schema": SCHEMA}
KINDS: list[dict[str, Any]] = [
    {"prompt": "Wings", "max_tokens": 40, "temperature": 0},
    {"prompt": "Wings of", "max_tokens": 30, "seed": 1, "n": 3, "logprobs": 2},
    {"prompt": ["Beak", "Tail"], "max_tokens": 25, "seed": 2, "stop": ["e"]},
    {"prompt": "Egg", "max_tokens": 60, "seed": 3, "guided_regex": "([a-z]{4}-){5}end", "n": 2},
    {
        "prompt": "Nest",
        "max_tokens": 30,
        "seed": 8,
        "guided_grammar": 'start: "yes" | "no"',
        "logprobs": 1,
    },
    TALK | {"max_tokens": 30, "seed": 4, "logprobs": True, "top_logprobs": 3, "n": 2},
    TALK
    | {
        "max_tokens": 150,
        "seed": 5,
        "logprobs": True,
        "response_format": {"type": "json_schema", "json_schema": NAMED},
    },
    TALK | {"max_tokens": 150, "seed": 6, "tools": [TOOL, OTHER], "tool_choice": "required"},
    TALK | {"max_tokens": 30, "seed": 7, "tools": [TOOL], "presence_penalty": 1.5},
]


def body_of(kind: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    path = "/v1/chat/completions" if "messages" in kind else "/v1/completions"
    return path, {"model": "model", **kind}


def whole(client: httpx.Client, kind: dict[str, Any]) -> Any:
    path, body = body_of(kind)
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    return [without_ids(choice) for choice in found.json()["choices"]]


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    for call in choice.get("message", {}).get("tool_calls") or ():
        call.pop("id")
    return choice


def streamed(client: httpx.Client, kind: dict[str, Any]) -> Any:
    """Text, calls, logprobs and ends by sample, put together from the chunks."""
    path, body = body_of(kind)
    found: dict[int, dict[str, Any]] = {}
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        told = list(events(response))
    assert told.pop() == "[DONE]"
    for chunk in map(json.loads, told):
        for choice in chunk["choices"]:
            own = found.setdefault(
                choice["index"], {"text": "", "calls": [], "logprobs": [], "end": None}
            )
            delta = choice.get("delta", choice)
            own["text"] += delta.get("content") or delta.get("text") or ""
            own["calls"] += [call["function"] for call in delta.get("tool_calls") or ()]
            own["logprobs"] += values(choice.get("logprobs"))
            own["end"] = choice["finish_reason"] or own["end"]
    return [found[index] for index in sorted(found)]


def values(logprobs: dict[str, Any] | None) -> list[float]:
    if not logprobs:
        return []
    if "token_logprobs" in logprobs:
        return list(logprobs["token_logprobs"])
    return [each["logprob"] for each in logprobs["content"]]


def test_each_gets_what_it_gets_alone(server: ServerProcess) -> None:
    """Texts, calls, ends and the logprobs to the last bit."""
    dice = random.Random(0)
    jobs = [(ask, number) for ask in (whole, streamed) for number in range(len(KINDS))] * 3
    dice.shuffle(jobs)
    with httpx.Client(base_url=server.url, timeout=120) as client:
        alone = {
            (ask, n): ask(client, kind) for ask in (whole, streamed) for n, kind in enumerate(KINDS)
        }
        with ThreadPoolExecutor(len(jobs)) as crowd:
            found = list(crowd.map(lambda job: job[0](client, KINDS[job[1]]), jobs))
    for job, answer in zip(jobs, found, strict=True):
        assert answer == alone[job], KINDS[job[1]]
    for number in range(len(KINDS)):
        texts = [choice["text"] for choice in alone[streamed, number]]
        assert texts == [
            choice.get("text", choice.get("message", {}).get("content")) or ""
            for choice in alone[whole, number]
        ]
