"""The sampling settings of the running sequences, and what their penalties remember."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from alula.errors import ModelError, UsageError
from alula.ops.exact import LARGEST_VOCABULARY
from alula.ops.sample import LineSettings, Wants
from alula.sampling.params import FLOAT32_TINY, SamplingParams
from alula.sampling.transforms import Filters, Penalties


class SamplingState:
    """Settings, keys and token counts of S lines, one running sequence each.

    Tensors are on the device and [S] unless said otherwise; the host keeps each line's
    parameters too, so that it can choose the cheap path without asking the device. A released
    line is greedy. Counts and biases take memory only once a request needs them. Raises
    ModelError for a vocabulary too large to add its masses up in 63 bits.
    """

    def __init__(self, lines: int, vocabulary: int, device: torch.device | str = "cpu") -> None:
        if vocabulary > LARGEST_VOCABULARY:
            raise ModelError(
                f"a vocabulary of {vocabulary} tokens cannot be sampled from",
                f"masses are added up in 63 bits, enough for {LARGEST_VOCABULARY} tokens",
                "use a model with fewer tokens",
            )
        self.vocabulary = vocabulary
        self.device = torch.device(device)
        self.params: list[SamplingParams | None] = [None] * lines
        self.temperature = torch.zeros(lines, device=device)
        self.top_k = torch.full((lines,), vocabulary, device=device)
        self.top_p = torch.ones(lines, device=device)
        self.log_min_p = torch.full((lines,), -math.inf, device=device)
        self.repetition = torch.ones(lines, device=device)
        self.presence = torch.zeros(lines, device=device)
        self.frequency = torch.zeros(lines, device=device)
        self.key = torch.zeros(lines, dtype=torch.int64, device=device)
        self.prompt_seen: Tensor | None = None
        """[S, V] bool, whether a token occurs in the prompt."""
        self.output_counts: Tensor | None = None
        """[S, V] int32, how often a token occurs in the output."""
        self.bias: Tensor | None = None
        """[S, V] fp32, added to the logits."""

    @property
    def lines(self) -> int:
        """S."""
        return len(self.params)

    def admit(
        self,
        line: int,
        params: SamplingParams,
        key: int,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int] = (),
    ) -> None:
        """Give a line to a sequence; `key` is its `noise.request_key`.

        `output_ids` are the tokens it has already, where it was preempted. Raises UsageError for
        a biased token outside the vocabulary.
        """
        self._check_bias(params)
        self.params[line] = params
        self.temperature[line] = 0.0 if params.greedy else params.temperature
        self.top_k[line] = (
            min(params.top_k, self.vocabulary) if params.top_k > 0 else self.vocabulary
        )
        self.top_p[line] = max(params.top_p, FLOAT32_TINY)
        self.log_min_p[line] = math.log(params.min_p) if params.min_p else -math.inf
        self.repetition[line] = params.repetition_penalty
        self.presence[line] = params.presence_penalty
        self.frequency[line] = params.frequency_penalty
        self.key[line] = key
        if params.has_penalties:
            self._remember(line, prompt_ids, output_ids)
        if params.logit_bias or self.bias is not None:
            self._set_bias(line, params.logit_bias or {})

    def release(self, line: int) -> None:
        """Take a line back: it is greedy and free of penalties until the next admission."""
        self.admit(line, SamplingParams(temperature=0.0), 0, ())
        self.params[line] = None

    def all_greedy(self, lines: Iterable[int]) -> bool:
        """Whether every one of these lines takes the most likely token."""
        return all(self.is_greedy(line) for line in lines)

    def is_greedy(self, line: int) -> bool:
        """Whether a line takes the most likely token."""
        params = self.params[line]
        return params is None or params.greedy

    def adjusts(self, line: int) -> bool:
        """Whether penalties or a bias change a line's logits."""
        params = self.params[line]
        return params is not None and (params.has_penalties or bool(params.logit_bias))

    def penalties(self, lines: Tensor) -> Penalties:
        """The penalties of rows on `lines` [R]."""
        columns = (self.repetition, self.presence, self.frequency)
        return Penalties(*(column[lines, None] for column in columns))

    def filters(self, lines: Tensor) -> Filters:
        """The filters of rows on `lines` [R]."""
        columns = (self.top_k, self.top_p, self.log_min_p)
        return Filters(*(column[lines, None] for column in columns))

    def settings(self) -> LineSettings:
        """What a kernel reads by line."""
        return LineSettings(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            log_min_p=self.log_min_p,
            key=self.key,
            repetition=self.repetition,
            presence=self.presence,
            frequency=self.frequency,
            prompt_seen=self.prompt_seen,
            output_counts=self.output_counts,
            bias=self.bias,
        )

    def wants(self, lines: Iterable[int]) -> Wants:
        """What these lines ask of the sampler at most."""
        asked = [params for params in map(self.params.__getitem__, lines) if params is not None]
        drawn = [params for params in asked if not params.greedy]
        return Wants(
            noise=bool(drawn),
            filters=max((params.ranked_filters for params in drawn), default=0),
            adjustments=any(params.has_penalties or params.logit_bias for params in asked),
        )

    def _remember(self, line: int, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        shape = (self.lines, self.vocabulary)
        if self.prompt_seen is None or self.output_counts is None:
            self.prompt_seen = torch.zeros(shape, dtype=torch.bool, device=self.device)
            self.output_counts = torch.zeros(shape, dtype=torch.int32, device=self.device)
        self.prompt_seen[line] = False
        self.prompt_seen[line, self._ids(prompt_ids)] = True
        self.output_counts[line] = self._ids(output_ids).bincount(minlength=self.vocabulary)

    def _set_bias(self, line: int, bias: Mapping[int, float]) -> None:
        if self.bias is None:
            self.bias = torch.zeros(self.lines, self.vocabulary, device=self.device)
        self.bias[line] = 0.0
        self.bias[line, self._ids(list(bias))] = torch.tensor(
            list(bias.values()), dtype=torch.float32, device=self.device
        )

    def _ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.device)

    def _check_bias(self, params: SamplingParams) -> None:
        beyond = [token for token in params.logit_bias or () if token >= self.vocabulary]
        if beyond:
            raise UsageError(
                f"logit_bias names token {beyond[0]}",
                f"the model's vocabulary has the ids 0 to {self.vocabulary - 1}",
                "name tokens of this model's vocabulary",
            )
