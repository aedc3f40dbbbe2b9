"""Models of the Hugging Face hub, through its own client, cache and progress bars."""

from __future__ import annotations

import errno
from pathlib import Path

from alula.errors import AlulaError, MachineError, ModelError
from alula.models.config import read_json
from alula.shapes.huggingface import decoder_shape

_WANTED = ["*.json", "*.safetensors", "*.jinja"]
_NOT_WANTED = ["*/*"]  # copies in other formats live in folders


def download(repository: str) -> Path:
    """The local folder of a repository, as cached where the hub cannot be reached.

    The configuration comes first, so that a model alula cannot run costs no download. Raises
    ModelError for a repository that does not exist or is closed, MachineError without network.
    """
    config = _snapshot(repository, ["config.json"]) / "config.json"
    if not config.is_file():
        raise ModelError(
            f"the repository {repository} holds no model alula can run",
            "it has no config.json",
            "choose a repository with config.json and safetensors files",
        )
    decoder_shape(read_json(config))
    return _snapshot(repository, _WANTED)


def _snapshot(repository: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(repository, allow_patterns=patterns, ignore_patterns=_NOT_WANTED)
        )
    # The client lets errors of its transport through, whose types change with its version.
    except Exception as error:
        raise _explained(repository, error) from error


def _explained(repository: str, error: Exception) -> AlulaError:
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    what = f"cannot fetch {repository} from the Hugging Face hub"
    why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, GatedRepoError):
        return ModelError(what, why, "accept its terms on huggingface.co, then `hf auth login`")
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        return ModelError(what, why, "check the spelling; for a private one, `hf auth login`")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return MachineError(what, why, "free some space, or set HF_HOME to a larger disk")
    return MachineError(what, why, "check the network, or name a model on this machine")
