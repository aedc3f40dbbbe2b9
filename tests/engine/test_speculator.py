"""What is asked for is built or refused; and what is off costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from alula.engine import runner as runner_module
from alula.engine.core import Engine
from alula.engine.speculator import Speculator, asked, speculator
from alula.errors import AlulaError, ModelError, UsageError
from alula.models.load import LoadedModel, load
from alula.ops.rows import Rows
from alula.sampling.params import SamplingParams
from alula.sampling.sampler import sample
from alula.speculation.drafter import DraftContext, Drafter
from alula.speculation.eagle3_checkpoint import random_checkpoint, save
from alula.speculation.tree import DraftTree, parse_shape
from exactness import engine

DRAFTING = ["ngram", "eagle3", "expansion", "policy", "ledger"]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return load(str(tiny_model), "cpu", "float32")


def write_drafter(model: LoadedModel, folder: Path, **changes: Any) -> Path:
    shape = model.decoder.shape
    numbers = {
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "layers": shape.layers,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
    }
    save(random_checkpoint(**(numbers | changes)), folder)
    return folder


# Options


@pytest.mark.parametrize(
    ("option", "with_drafter", "reason"),
    [
        ("off", False, "off as asked"),
        ("chain:0", False, "off as asked"),
        ("ngram", False, "prompt lookup, chain:8"),
        ("chain:3", False, "prompt lookup, chain:3"),
        ("tree:4x1:4", False, "prompt lookup, chain:4"),
        ("chain:3", True, "EAGLE-3, the drafter {folder}, chain:3"),
        ("tree:3x2:6", True, "EAGLE-3, the drafter {folder}, tree:3x2:6"),
        ("auto", False, "auto: prompt lookup, up to 8 tokens"),
        ("auto", True, "auto: EAGLE-3, the drafter {folder}, up to 5 tokens"),
    ],
)
def test_every_option_builds_what_it_says(
    model: LoadedModel, tmp_path: Path, option: str, with_drafter: bool, reason: str
) -> None:
    folder = write_drafter(model, tmp_path / "drafter") if with_drafter else None
    made = speculator(asked(option, folder), model.decoder)
    assert made.reason.startswith(reason.format(folder=folder))
    assert made.keeps_keys == with_drafter


@pytest.mark.parametrize(
    "option", ["", "on", "chain", "chain:x", "chain:-1", "tree:2", "tree:0x1:1"]
)
def test_an_option_that_is_not_understood_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="draft shape"):
        asked(option, None)


def test_a_tree_without_a_drafter_is_refused() -> None:
    with pytest.raises(UsageError, match="tree:3x2:6 needs a drafter"):
        asked("tree:3x2:6", None)


@pytest.mark.parametrize("option", ["off", "ngram", "chain:0"])
def test_a_drafter_that_would_be_ignored_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{option} has no use for a drafter"):
        asked(option, tmp_path)


@pytest.mark.parametrize("option", ["auto", "chain:3", "tree:3x2:6"])
def test_a_folder_without_a_drafter_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no drafter"):
        asked(option, tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 96}, "its hidden size is 96, the target's 48"),
        ({"vocab_size": 300}, "its vocabulary is 300, the target's 259"),
        ({"layers": 12}, "layer -1; the target has 2"),
    ],
)
@pytest.mark.parametrize("option", ["auto", "chain:2"])
def test_a_drafter_of_another_target_is_refused(
    model: LoadedModel, tmp_path: Path, changes: dict[str, int], words: str, option: str
) -> None:
    folder = write_drafter(model, tmp_path / "drafter", **changes)
    with pytest.raises(ModelError, match="does not fit the target") as raised:
        speculator(asked(option, folder), model.decoder)
    assert words in raised.value.why


def test_more_children_than_the_draft_vocabulary_has_are_refused(
    model: LoadedModel, tmp_path: Path
) -> None:
    folder = write_drafter(model, tmp_path / "drafter", draft_vocab_size=4)
    with pytest.raises(AlulaError, match="tree:2x5:10"):
        speculator(asked("tree:2x5:10", folder), model.decoder)


# Off


def test_off_imports_no_module_that_drafts(tiny_model: Path) -> None:
    program = f"""
import sys
from alula import LLM, SamplingParams
llm = LLM({str(tiny_model)!r}, device="cpu", dtype="float32", speculation="off",
          cache_tokens=512)
llm.generate(["a", "b"], SamplingParams(max_tokens=3, temperature=0))
print(*(name for name in sys.modules if name.startswith("alula.")))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    loaded = set(found.stdout.split())
    assert "alula.engine.runner" in loaded
    assert not {"alula.engine.drafting", "alula.engine.features", "alula.engine.automatic"} & loaded
    assert not [
        name
        for name in loaded
        if name.startswith(tuple(f"alula.speculation.{part}" for part in DRAFTING))
    ]


class Operations(TorchDispatchMode):
    """Records every aten operation with the sizes and dtypes of its tensors, by who runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.model: list[tuple[Any, ...]] = []
        self.rest: list[tuple[Any, ...]] = []
        self.in_model = False

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        tensors = [part for part in tree_flatten((arguments, named))[0] if isinstance(part, Tensor)]
        entry = (str(operation), *((tuple(part.shape), part.dtype) for part in tensors))
        (self.model if self.in_model else self.rest).append(entry)
        return operation(*arguments, **(named or {}))

    def of_the_model(self, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.in_model = True
            try:
                return function(*arguments)
            finally:
                self.in_model = False

        return call


class Silent(Drafter):
    """Follows and drafts nothing, where drafting was asked for."""

    def allocate(self, pages: int, page_size: int, sequences: int, device: torch.device) -> None:
        """It keeps no keys."""

    def propose(self, context: DraftContext, depth: int) -> DraftTree:  # noqa: ARG002
        none = context.history[:, :0]
        return DraftTree(none, none)


class Tapping(Silent):
    taps = (0, 1)


PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True),
    "sampled": SamplingParams(top_p=0.9, seed=1, max_tokens=9, ignore_eos=True),
}


def round_of(
    made: Engine, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> tuple[Operations, int]:
    """The operations of the third round, and the position of its root."""
    made.add(made.model.tokenizer.encode("a prompt of some length"), params)
    for _ in range(3):
        made.step()
    (request,) = made._requests
    root = len(request.answers[0].sequence.token_ids) - 1
    recorded, decoder = Operations(), made.model.decoder
    with monkeypatch.context() as patched, recorded:
        patched.setattr(decoder, "forward", recorded.of_the_model(decoder.forward))
        patched.setattr(decoder, "logits", recorded.of_the_model(decoder.logits))
        patched.setattr(runner_module, "sample", recorded.of_the_model(sample))
        made.step()
    return recorded, root


def plain_step(made: Engine, root: int) -> list[tuple[Any, ...]]:
    """One row through the decoder, its logits, its token: what decoding cannot do without."""
    lines, pool, decoder = made._runner.lines, made._runner._pool, made.model.decoder
    line, at = torch.tensor([0]), torch.tensor([root])
    table = lines.page_table[:1]
    slot = table[0, at // pool.page_size] * pool.page_size + at % pool.page_size
    rows = Rows(at, slot, torch.tensor([0]), at, page_table=table, base=at)
    path = torch.empty(1, 0, dtype=torch.int64)
    ids = lines.history[0, at]
    with Operations() as recorded:
        hidden = recorded.of_the_model(decoder.forward)(ids, rows, pool).last
        logits = recorded.of_the_model(decoder.logits)(hidden)[:, : lines.sampling.vocabulary]
        recorded.of_the_model(sample)(logits, line, at + 1, path, lines.sampling)
    return recorded.model


VIEWS = ("aten.slice.Tensor", "aten.alias.default")


def floats(entries: list[tuple[Any, ...]]) -> list[str]:
    """Operations on floating-point tensors."""
    return [name for name, *parts in entries if any(dtype.is_floating_point for _, dtype in parts)]


@pytest.mark.parametrize("kind", PARAMS)
def test_a_round_with_speculation_off_is_a_plain_step(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The model runs the operations of one plain row, in their order and sizes, and no other.

    Around it there are only integers to keep, a token and a few flags a sequence; of floats
    nothing but the choice of the rows and the tokens that have logits.
    """
    made = engine(model)
    recorded, root = round_of(made, PARAMS[kind], monkeypatch)
    assert recorded.model == plain_step(made, root)
    assert set(floats(recorded.rest)) <= {"aten.index.Tensor", *VIEWS}
    assert len(floats(recorded.rest)) <= 3


def test_a_drafter_that_proposes_nothing_is_told_from_one_that_is_not_there(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: following costs operations. Taps cost the model none."""
    plain, _ = round_of(engine(model), PARAMS["greedy"], monkeypatch)
    silent = engine(model, Speculator(Silent(parse_shape("chain:4"))))
    followed, _ = round_of(silent, PARAMS["greedy"], monkeypatch)
    assert followed.model == plain.model
    assert len(followed.rest) > len(plain.rest)
    tapping = engine(model, Speculator(Tapping(parse_shape("chain:4"))))
    tapped, _ = round_of(tapping, PARAMS["greedy"], monkeypatch)
    assert tapped.model == plain.model
    tree = engine(model, Speculator(Silent(parse_shape("tree:2x2:4"))))
    hung, _ = round_of(tree, PARAMS["greedy"], monkeypatch)
    assert hung.model != plain.model
    assert len(floats(hung.rest)) > len(floats(plain.rest))


def test_a_drafter_that_is_not_there_is_told_from_a_folder_without_one(tmp_path: Path) -> None:
    for folder, why in ((tmp_path, "it has no config.json"), (tmp_path / "x", "no such folder")):
        with pytest.raises(ModelError) as caught:
            asked("chain:3", folder)
        assert why in caught.value.why
