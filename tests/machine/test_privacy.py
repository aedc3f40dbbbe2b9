"""A saved report names nobody."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.machine.privacy import Redactor, own_redactor, redacted

REDACTOR = Redactor("/home/ada", {"ada": "<user>", "ada-box": "<host>"}, frozenset({"12.8.4.1"}))

SECRETS = [
    "/home/ada/models/x",
    "/home/grace/.venv/lib",
    "C:\\Users\\Grace\\envs",
    "/Users/grace/envs",
    "user ada on ada-box",
    "GPU-5c4e1b7a-1f0e-9d7b-aaaa-0123456789ab",
    "MIG-5c4e1b7a-1f0e-9d7b-aaaa-0123456789ab",
    "HF_TOKEN=hf_abcdefghijklmnop",
    "--api-key s3cr3tvalue",
    "--hf-token=s3cr3tvalue",
    "OPENAI_API_KEY: 's3cr3tvalue'",
    "non-default args: {'api_key': 's3cr3tvalue', 'port': 1}",
    "non-default args: {'api_key': ['s3cr3tvalue'], 'port': 1}",
    'ServerArgs(api_key="s3cr3tvalue")',
    "Authorization: Bearer s3cr3tvalue123",
    "sk-abcdefghijklmnopqrstuv",
    "https://grace:s3cr3tvalue@example.org/x",
    "http://10.1.2.3:8000/v1",
    "listening on 192.168.17.4",
    "fe80::1ff:fe23:4567:890a",
    "02:42:ac:11:00:02",
    "grace@example.org",
    "Serial Number: 1652324099999",
    "S/N: 1652324099999",
    "/home//grace/x and /home/ada//y",
    "c:\\users\\grace\\x",
    "C:\\\\Users\\\\Grace",
    "C:/Users/Grace/x",
    "file:%2Fhome%2Fgrace%2Fx",
    "ADA on Ada-Box",
    "02-42-ac-11-00-02 and 0242.ac11.0002",
    "::ffff:10.1.2.3",
    "PGPASSWORD=s3cr3tvalue",
    '{"token": "s3cr3tvalue"}',
    "{'api_key': 's3cr3tvalue'}",
    "token='my s3cr3tvalue'",
    "https://example.org/x?X-Amz-Signature=s3cr3tvalue&y=1",
    "machine-id 5c4e1b7a1f0e9d7baaaa0123456789ab",
    "AIzaSyabcdefghijklmnopqrstuv",
    "hf_abcdefghijklmnop",
]
_LEAKS = [
    *("ada", "grace", "Grace", "5c4e1b7a", "s3cr3tvalue", "abcdefghijklmnop", "10.1.2.3"),
    *("192.168.17.4", "fe80::", "02:42:ac", "1652324099999"),
    *("02-42-ac", "0242.ac11", "ADA", "Ada"),
]


@pytest.mark.parametrize("secret", SECRETS)
def test_every_kind_of_secret_is_left_out(secret: str) -> None:
    text = json.dumps(REDACTOR.clean({"notes": [f"before {secret} after"], secret: 1}))
    assert not [leak for leak in _LEAKS if leak in text.replace("ada-box", "")], text
    assert "before" in text


def test_fields_that_name_something_are_emptied() -> None:
    found = REDACTOR.clean(
        {"uuid": "anything", "api_key": "plain", "hostname": "b", "name": "H200"}
    )
    assert found == {"uuid": "", "api_key": "<secret>", "hostname": "", "name": "H200"}


@pytest.mark.parametrize(
    "fact",
    [
        "tokenizers 0.23.3",
        "tiktoken is not installed",
        "nvidia-cublas-cu12 12.8.4.1",
        "NVIDIA RTX PRO 6000 Blackwell",
        "00000000:c1:00.0",
        "driver 590.48.01",
        "sm_120a in all 74",
        "libcudart.so.12",
        "symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
        "flashinfer/jit/comm.py:61",
        "std::vector",
        "c10::cuda::CUDAStream and at::Tensor::item",
        "/usr/local/cuda-13.0",
        "redirects at 0000:00:01.1",
    ],
)
def test_facts_stay(fact: str) -> None:
    assert REDACTOR.text(fact) == fact


def test_versions_that_look_like_addresses_stay() -> None:
    report = {
        "software": {
            "packages": {"nvidia-cudnn-cu13": "9.13.0.50"},
            "requirements": [{"text": "nvidia-curand-cu12==10.3.9.90"}],
        },
        "notes": ["9.13.0.50 and 10.3.9.90 and 10.3.9.91"],
    }
    assert redacted(report)["notes"] == ["9.13.0.50 and 10.3.9.90 and <address>"]


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=8))
def test_any_value_is_cleaned_to_the_same_shape(value: object) -> None:
    cleaned = REDACTOR.clean({"value": value})["value"]
    assert type(cleaned) is type(value)
    assert REDACTOR.clean(cleaned) == cleaned or "<" in json.dumps(cleaned)


_LONG = [
    *("a_" * 50_000, "_ZN3c10" * 20_000, "a." * 50_000, "1." * 50_000, "f:" * 50_000),
    *("/" * 100_000, "%2F" * 40_000, "\\home" * 20_000, "password" * 15_000, "token='" * 15_000),
    *("s/n:" * 25_000, 'token="' + "x" * 100_000, "aa-" * 40_000, "aaaa." * 25_000),
    *("-" * 100_000, "token" * 20_000, "--a-" * 25_000, "://" * 30_000, "serial " * 15_000),
]


@pytest.mark.parametrize("text", _LONG, ids=lambda text: text[:7])
def test_long_texts_take_no_time(text: str) -> None:
    start = time.process_time()
    REDACTOR.text(text)
    assert time.process_time() - start < 5.0  # two at most; a wrong pattern takes minutes


def test_a_user_without_a_home_is_redacted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert own_redactor().text("/home/grace/x hf_abcdefghijklmnop") == "~/x <secret>"
