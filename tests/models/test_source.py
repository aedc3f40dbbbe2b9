"""One name, one local model, or an error that says what a name may be."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from alula.errors import MachineError, ModelError
from alula.models.source import resolve


def test_a_folder_and_a_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert resolve(str(tmp_path)).kind == "folder"
    assert resolve(str(tmp_path / "m.gguf")).kind == "gguf"


@pytest.mark.parametrize(
    "name", ["nothing.gguf", "./no/folder", "smollm3", "a/b/c", "/etc/none", ""]
)
def test_a_name_of_nothing_lists_what_a_name_may_be(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(name)
    if name:
        assert name in caught.value.what
        assert "smollm2" in caught.value.fix


def test_a_folder_without_a_model_names_the_gguf_in_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="it has no config"):
        resolve(str(tmp_path))
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelError) as caught:
        resolve(str(tmp_path))
    assert "m.gguf" in caught.value.fix


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04....", b"GGU"])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="instead of b'GGUF'"):
        resolve(str(tmp_path / "m.gguf"))


class _ProxyError(Exception):
    """Like the transport's: no OSError, and of no type alula could name."""


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[Any]:
    asked: list[Any] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        asked.append(options["allow_patterns"])
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_a_repository_alula_cannot_run_costs_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    asked = fake_hub(monkeypatch, tmp_path)
    with pytest.raises(ModelError, match="gpt2"):
        resolve("openai/gpt2")
    assert asked == [["config.json"]]


def test_no_network_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, LocalEntryNotFoundError("cannot reach the hub"))
    with pytest.raises(MachineError) as caught:
        resolve("organisation/model")
    assert "organisation/model" in caught.value.what
    assert "network" in caught.value.fix


def test_an_error_of_the_transport_is_explained_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, _ProxyError("proxy said no"))
    with pytest.raises(MachineError, match="proxy said no"):
        resolve("organisation/model")


def test_an_unknown_repository_is_the_names_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    response = SimpleNamespace(headers={}, request=None, status_code=404)
    fake_hub(monkeypatch, RepositoryNotFoundError("404: no such repository", response=response))
    with pytest.raises(ModelError) as caught:
        resolve("organisation/model")
    assert "spelling" in caught.value.fix


def test_a_cached_repository_serves_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the hub's own client, told to stay offline."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    store = tmp_path / "models--organisation--model"
    snapshot = store / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (store / "refs").mkdir()
    (store / "refs" / "main").write_text(commit)
    config = {
        "model_type": "llama",
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8,
    }
    (snapshot / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert resolve("organisation/model").path == snapshot
