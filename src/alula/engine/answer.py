"""The answer of one sequence as it grows: its text, its ends and its measurements."""

from __future__ import annotations

from alula.engine.outputs import CompletionOutput, Delta, SpeculationStats, TokenLogprobs
from alula.engine.request import FinishReason, Sequence
from alula.engine.runner import Emitted
from alula.text.detokenizer import Detokenizer
from alula.text.tokenizer import Tokenizer


class Answer:
    """Turns emitted tokens into text that is safe to show, and knows when it ends."""

    def __init__(self, sequence: Sequence, index: int, tokenizer: Tokenizer) -> None:
        self.sequence = sequence
        self.index = index
        self._eos_ids = frozenset() if sequence.params.ignore_eos else tokenizer.eos_ids
        self._detokenizer = Detokenizer(tokenizer, tuple(sequence.params.stop or ()))
        self._logprobs: list[TokenLogprobs] | None = (
            None if sequence.params.logprobs is None else []
        )
        self._drafted: list[bool] = []
        self._stop_token: int | None = None
        self._cut: int | None = None
        self._shown = 0

    def take(self, emitted: Emitted) -> tuple[Delta, FinishReason | None]:
        """Add what a launch emitted; returns the new text and why the answer ends, if it does."""
        tokens = emitted.tokens
        if self._logprobs is not None:
            self._logprobs += emitted.logprobs or []
        self._drafted += [number < emitted.accepted for number in range(len(tokens))]
        if emitted.stopped:
            self._stop_token = tokens[-1]
        text = self._detokenizer.push(tokens[:-1] if emitted.stopped else tokens)
        reason = self._reason(emitted)
        if reason is not None:
            text += self._detokenizer.finish()
        if self._detokenizer.stopped is not None:
            self._cut, self._stop_token, reason = self._detokenizer.kept_tokens, None, "stop"
        return self._delta(text, reason is not None), reason

    def _reason(self, emitted: Emitted) -> FinishReason | None:
        if emitted.failed:
            return "abort"
        if emitted.stopped or self._detokenizer.stopped is not None:
            return "stop"
        return "length" if emitted.full else None

    def _delta(self, text: str, finished: bool) -> Delta:
        # All that came before is left alone: an answer may be long, and has many deltas.
        before, tokens = len(self.sequence.prompt_ids), self.sequence.token_ids
        count = len(tokens) - before if self._cut is None else self._cut
        settled = count if finished or not self._detokenizer.holds_text else self._shown
        new = slice(self._shown, settled)
        of_delta = tokens[before + self._shown : before + settled]
        self._shown = max(self._shown, settled)
        return Delta(
            self.index,
            text,
            of_delta,
            finished,
            self._drafted[new],
            None if self._logprobs is None else self._logprobs[new],
        )

    def output(self) -> CompletionOutput:
        """The finished answer."""
        sequence = self.sequence
        assert sequence.finish_reason is not None
        tokens = sequence.output_ids[: self._cut]
        stop: str | int | None = self._detokenizer.stopped
        if stop is None and self._stop_token not in self._eos_ids:
            stop = self._stop_token
        return CompletionOutput(
            index=self.index,
            text=self._detokenizer.text,
            token_ids=tokens,
            finish_reason=sequence.finish_reason,
            stop_reason=stop,
            logprobs=None if self._logprobs is None else self._logprobs[: len(tokens)],
            speculation=SpeculationStats(
                rounds=sequence.rounds,
                emitted=sum(length * count for length, count in sequence.emitted.items()),
                drafted=tuple(sequence.drafted),
                accepted=tuple(sequence.accepted),
            ),
            preemptions=sequence.preemptions,
            prefix_tokens=sequence.prefix_tokens,
        )
