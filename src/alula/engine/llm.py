"""The LLM a program talks to, in the shape that users of vLLM know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from operator import index
from pathlib import Path
from typing import Any

import torch

from alula.engine.core import Engine
from alula.engine.events import Request
from alula.engine.outputs import Delta, RequestOutput
from alula.engine.settings import Settings
from alula.engine.speculator import asked, drafter_for
from alula.engine.speculator import speculator as make_speculator
from alula.errors import UsageError
from alula.models.load import load
from alula.models.progress import Progress, silent
from alula.ops.memory import memory_for
from alula.sampling.params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]
_SMALLER = "go without it (--speculation off), choose a smaller one, or a device with more memory"
Watcher = Callable[[Request, Delta], None]


class LLM:
    """A loaded model that answers prompts.

    >>> llm = LLM("smollm2")  # doctest: +SKIP
    >>> llm.generate("The capital of France is")[0].outputs[0].text  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        dtype: str = "auto",
        device: str = "auto",
        speculation: str = "auto",
        drafter: str | Path | None = None,
        settings: Settings | None = None,
        progress: Progress | None = None,
        **sizes: Any,
    ) -> None:
        """Load `model`: a folder, a .gguf file, a Hugging Face id or a built-in name.

        `speculation`: off, ngram, auto, chain:K or tree:DEPTHxWIDTH:NODES; `drafter`: the folder
        of an EAGLE-3 drafter, by default the one that comes with a built-in model. `sizes` are the
        fields of `Settings`. What can be refused without the model is refused before it is loaded.
        """
        settings = _with_sizes(settings or Settings(), sizes)
        given = None if drafter is None else Path(drafter)
        wish = asked(speculation, drafter_for(speculation, model, given))
        self.model = load(
            model, device=device_named(device), dtype=dtype, progress=progress or silent
        )
        with memory_for("the drafter", self.model.decoder.device, _SMALLER):
            self.speculator = make_speculator(wish, self.model.decoder)
        self.engine = Engine(self.model, settings, self.speculator)

    @property
    def notes(self) -> list[str]:
        """What was chosen automatically and why, a line each."""
        return [*self.model.notes, f"speculation: {self.speculator.reason}"]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_delta: Watcher | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts: text, token ids, or {"prompt_token_ids": ids}, one or several.

        Returns an output per prompt, in order. Raises UsageError before any work if one of them
        cannot be taken. `on_delta` sees every piece of text as it comes.
        """
        batch = _as_batch(prompts)
        return self._run(batch, _params_for(batch, sampling_params), on_delta)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_delta: Watcher | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations: one list of {"role", "content"} messages, or several."""
        alone = not messages or isinstance(messages, Mapping) or isinstance(messages[0], Mapping)
        many = [messages] if alone else messages
        batch: list[Prompt] = [self._chat_prompt(conversation) for conversation in many]
        return self._run(batch, _params_for(batch, sampling_params), on_delta)

    def stream(
        self, prompt: Prompt | Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Iterator[Delta]:
        """Continue one prompt, or answer one conversation, as a stream of text.

        Leaving the loop early aborts the request.
        """
        single: Any = self._chat_prompt(prompt) if _is_conversation(prompt) else prompt
        (request,) = self._add([single], [sampling_params or SamplingParams()])
        try:
            for event in self.engine.follow([request]):
                yield event.delta
        finally:
            self.engine.abort(request)

    def _run(
        self, batch: list[Prompt], params: list[SamplingParams], on_delta: Watcher | None
    ) -> list[RequestOutput]:
        requests = self._add(batch, params)
        by_id = {request.id: request for request in requests}
        done: dict[str, RequestOutput] = {}
        try:
            for event in self.engine.follow(requests):
                if on_delta is not None:
                    on_delta(by_id[event.request_id], event.delta)
                if event.output is not None:
                    done[event.request_id] = event.output
        finally:
            for request in requests:
                self.engine.abort(request)
        return [done[request.id] for request in requests]

    def _add(self, batch: list[Prompt], params: list[SamplingParams]) -> list[Request]:
        """Queue all or none."""
        encoded = [self._encode(prompt) for prompt in batch]
        requests: list[Request] = []
        try:
            for (ids, text), each in zip(encoded, params, strict=True):
                requests.append(self.engine.add(ids, each, text))
        except BaseException:
            for request in requests:
                self.engine.abort(request)
            raise
        return requests

    def _encode(self, prompt: Prompt) -> tuple[list[int], str | None]:
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt), prompt
        if isinstance(prompt, Mapping):
            if set(prompt) != {"prompt_token_ids"}:
                raise UsageError(
                    f"a prompt with the keys {sorted(prompt)} is not understood",
                    "a mapping holds token ids under prompt_token_ids, and nothing else",
                    'give text, a list of ids, or {"prompt_token_ids": ids}',
                )
            prompt = prompt["prompt_token_ids"]
        return _token_ids(prompt), None

    def _chat_prompt(self, messages: Any) -> Prompt:
        template = self.model.chat_template
        if template is None:
            raise UsageError(
                f"{self.model.source.name} cannot chat",
                "it comes without a chat template",
                "use generate with a prompt written out, or a model tuned for chat",
            )
        # The template writes the beginning-of-sequence token itself, where the model wants one.
        ids = self.model.tokenizer.encode(template.render(messages), add_bos=False)
        return {"prompt_token_ids": ids}


def _with_sizes(settings: Settings, sizes: dict[str, Any]) -> Settings:
    unknown = sorted(set(sizes) - set(Settings.__dataclass_fields__))
    if unknown:
        raise UsageError(
            f"LLM has no parameter {unknown[0]}",
            f"the sizes that can be set are {', '.join(Settings.__dataclass_fields__)}",
            "leave it out, or use one of these",
        )
    return replace(settings, **sizes)


def _is_conversation(prompt: Any) -> bool:
    return not isinstance(prompt, str | Mapping) and bool(prompt) and isinstance(prompt[0], Mapping)


def _token_ids(prompt: Any) -> list[int]:
    try:
        tokens = None if isinstance(prompt, str | bytes) else list(prompt)
    except TypeError:
        tokens = None
    if tokens is None:
        raise UsageError(
            f"a prompt of type {type(prompt).__name__} is not understood",
            "a prompt is text, or token ids that are whole numbers",
            'give text, a list of ids, or {"prompt_token_ids": ids}',
        )
    return [_token_id(token) for token in tokens]


def _as_batch(prompts: Any) -> list[Prompt]:
    several = not isinstance(prompts, str | bytes | Mapping) and isinstance(prompts, Iterable)
    batch = list(prompts) if several else [prompts]
    return [batch] if batch and isinstance(batch[0], Integral) and several else batch


def _params_for(
    batch: list[Prompt], given: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * len(batch)
    if not isinstance(given, Sequence) or not all(isinstance(p, SamplingParams) for p in given):
        raise UsageError(
            "the sampling parameters are not understood",
            f"they are a {type(given).__name__}, not SamplingParams or a list of them",
            "give a single SamplingParams or a list as long as the prompts",
        )
    if len(given) != len(batch):
        raise UsageError(
            f"{len(given)} sampling parameters for {len(batch)} prompts",
            "there must be one for all prompts, or one each",
            "give a single SamplingParams or a list as long as the prompts",
        )
    return list(given)


def device_named(name: str) -> str:
    """The device that `auto` means: a GPU where torch sees one."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _token_id(token: Any) -> int:
    try:
        return index(token)
    except TypeError:
        raise UsageError(
            f"a prompt holds {token!r} among its token ids",
            "a token id is a whole number",
            "give text, or what the model's tokenizer made of it",
        ) from None
