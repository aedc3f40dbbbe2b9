"""On a GPU too, only the request decides its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from alula.engine.rounds import CapturedRounds, Rounds
from alula.engine.speculator import Speculator, asked, speculator
from alula.models.load import load
from alula.ops.sample import Wants
from alula.speculation.eagle3_checkpoint import random_checkpoint, save
from alula.speculation.tree import parse_shape
from exactness import Oracle, answers, cases, engine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
GREEDY = Wants(noise=False, filters=0, adjustments=False)


def test_tokens_do_not_depend_on_batch_chunks_prefixes_or_drafts(
    tiny_model: Path, tmp_path: Path
) -> None:
    model = load(str(tiny_model), "cuda", "bfloat16")
    assert not any("not invariant" in note for note in model.notes)
    shape = model.decoder.shape
    requests = cases(shape.vocab_size, 8, 24)
    plain = answers(engine(model), requests, together=False)
    assert answers(engine(model, chunk_rows=7, page_size=16), requests, together=True) == plain
    assert answers(engine(model, max_sequences=16), requests, together=True) == plain
    truths = [(prompt, out) for (prompt, _), out in zip(requests, plain, strict=True)]
    for words in ("chain:4", "tree:4x3:12"):
        oracle = Speculator(Oracle(parse_shape(words), truths))
        tight = engine(model, oracle, graphs=False)  # the oracle thinks on the host
        assert answers(tight, requests, together=True) == plain, words
    drafter = random_checkpoint(
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
    )
    save(drafter, tmp_path / "drafter")
    for words in ("chain:3", "tree:3x3:9"):
        for graphs in (False, True):
            drafting = speculator(asked(words, tmp_path / "drafter"), model.decoder)
            made = engine(model, drafting, graphs=graphs)
            assert answers(made, requests, together=True) == plain, (words, graphs)
            assert bool(made._runner.launches["captured"]) == graphs
            rounds = made._runner.rounds
            assert (rounds is not None and rounds.capturing > 0) == graphs


def test_rounds_of_more_rows_than_a_joined_launch_takes_give_the_same_tokens(
    tiny_model: Path,
) -> None:
    model = load(str(tiny_model), "cuda", "bfloat16")
    from alula.ops.triton.layer import JOINED_ROWS

    requests = cases(model.decoder.shape.vocab_size, 48, 32)
    plain = answers(engine(model), requests, together=False)
    truths = [(prompt, out) for (prompt, _), out in zip(requests, plain, strict=True)]
    oracle = Speculator(Oracle(parse_shape("chain:4"), truths))
    made = engine(model, oracle, graphs=False, max_sequences=48)
    rows: list[int] = []
    made.observers.append(lambda record: rows.append(record.sequences + record.draft_nodes))
    assert answers(made, requests, together=True) == plain
    assert max(rows) > JOINED_ROWS


def test_a_round_is_read_where_it_was_left_whatever_was_replayed_before(tiny_model: Path) -> None:
    model = load(str(tiny_model), "cuda", "bfloat16")
    made = engine(model, graphs=True)
    runner = made._runner
    rounds, spare = runner.rounds, runner.lines.spare
    assert isinstance(rounds, CapturedRounds)
    for sequences in (1, 2):
        lines = [spare] * sequences
        expected = Rounds(runner.lines, runner._round).launch(lines, 0, 0, GREEDY).read()
        assert expected == [[0, 0, 0, 1, 1, 0, -1]] * sequences
        assert rounds.launch(lines, 0, 0, GREEDY).read() == expected
        graph = list(rounds._graphs.values())[-1]
        for replays in (0, 1, 2, 0, 3):
            for _ in range(replays):
                graph.replay()
            torch.cuda.synchronize()
            graph._mailbox.columns.fill_(-9)
            assert rounds.launch(lines, 0, 0, GREEDY).read() == expected
