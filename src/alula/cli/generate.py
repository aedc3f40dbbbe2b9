"""`alula generate`: answer one prompt as it comes, or a file of prompts together."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli import options
from alula.cli.answers import objects, summary
from alula.cli.console import print_dim, print_json, progress_bar
from alula.cli.prompts import Prompt, read
from alula.cli.session import open_llm
from alula.errors import UsageError
from alula.sampling.params import SamplingParams

if TYPE_CHECKING:
    from alula.engine.events import Request
    from alula.engine.llm import LLM, Watcher
    from alula.engine.outputs import Delta, RequestOutput


def generate(
    model: options.Model = "smollm2",
    prompt: Annotated[
        str | None,
        typer.Option(help="The prompt; - reads it from standard input.", metavar="TEXT"),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='A file of prompts, one a line; in a .jsonl file {"prompt": …} or '
            '{"messages": […]}.',
            metavar="FILE",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without chat template.")
    ] = False,
    max_tokens: options.MaxTokens = 256,
    json: options.Json = False,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    seed: options.Seed = None,
    n: Annotated[int, typer.Option("--n", help="Answers to each prompt.", metavar="N")] = 1,
    stop: options.Stop = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on where the model wants to end.")
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="With --json: log-probabilities of the tokens and of K alternatives.", metavar="K"
        ),
    ] = None,
    speculation: options.Speculation = "auto",
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    cache_tokens: options.CacheTokens = None,
    max_length: options.MaxLength = None,
    max_sequences: options.MaxSequences = 8,
    graphs: options.Graphs = True,
) -> None:
    """Answer one prompt, or a file of prompts.

    The text goes to standard output, everything else to standard error. With --json every
    answer is one JSON object on a line of its own, in the order of the prompts and samples.
    """
    _refuse_hidden_logprobs(logprobs, json)
    asked = read(prompt, prompts)
    _refuse_raw_messages(raw, asked)
    params = SamplingParams(
        n=n,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        stop=stop,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    )
    llm = open_llm(
        model,
        device=device,
        dtype=dtype,
        speculation=speculation,
        drafter=drafter,
        max_sequences=max_sequences,
        max_length=max_length,
        cache_tokens=cache_tokens,
        graphs=graphs,
    )
    if json:
        _write_json(llm, asked, params, raw)
    else:
        _write_text(llm, asked, params, raw)


def _refuse_hidden_logprobs(logprobs: int | None, json: bool) -> None:
    if logprobs is not None and not json:
        raise UsageError(
            "--logprobs needs --json",
            "log-probabilities have no place in plain text",
            "add --json, or leave --logprobs out",
        )


def _refuse_raw_messages(raw: bool, asked: list[Prompt]) -> None:
    if raw and not all(isinstance(prompt, str) for prompt in asked):
        raise UsageError(
            "messages cannot be taken raw",
            "--raw leaves the chat template out, and messages become text through it alone",
            "leave --raw out, or write prompts instead of messages",
        )


def _write_json(llm: LLM, asked: list[Prompt], params: SamplingParams, raw: bool) -> None:
    outputs = _with_progress(llm, asked, params, raw)
    for number, (prompt, output) in enumerate(zip(asked, outputs, strict=True)):
        for found in objects(llm, number, prompt, output):
            print_json(found)


def _write_text(llm: LLM, asked: list[Prompt], params: SamplingParams, raw: bool) -> None:
    started = time.perf_counter()
    if len(asked) == 1 and params.n == 1:
        try:
            outputs = _answer(llm, asked, params, raw, _stream)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            sys.stdout.flush()
            print_dim(["stopped"])
            raise
        sys.stdout.write("\n")
    else:
        outputs = _with_progress(llm, asked, params, raw)
        _write_listed(asked, outputs)
    sys.stdout.flush()
    seconds = time.perf_counter() - started
    print_dim([summary(outputs, seconds, sampled=not params.greedy), *llm.notes])


def _answer(
    llm: LLM, asked: list[Prompt], params: SamplingParams, raw: bool, on_delta: Watcher
) -> list[RequestOutput]:
    """Through the chat template where there is one, unless the prompts are to be taken as is."""
    texts = [prompt for prompt in asked if isinstance(prompt, str)]
    if len(texts) == len(asked) and (raw or llm.model.chat_template is None):
        return llm.generate(texts, params, on_delta=on_delta)
    conversations = [
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        for prompt in asked
    ]
    return llm.chat(conversations, params, on_delta=on_delta)


def _stream(_request: Request, delta: Delta) -> None:
    sys.stdout.write(delta.text)
    sys.stdout.flush()


def _with_progress(
    llm: LLM, asked: list[Prompt], params: SamplingParams, raw: bool
) -> list[RequestOutput]:
    with progress_bar("answering", len(asked) * params.n) as task:

        def count(_request: Request, delta: Delta) -> None:
            if delta.finished:
                task.advance(1)

        return _answer(llm, asked, params, raw, count)


def _write_listed(asked: list[Prompt], outputs: list[RequestOutput]) -> None:
    """Several answers, each under the beginning of its prompt."""
    for number, (prompt, output) in enumerate(zip(asked, outputs, strict=True), start=1):
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        for answer in output.outputs:
            sample = f" ({answer.index + 1} of {len(output.outputs)})" if output.outputs[1:] else ""
            sys.stdout.write(f"[{number}{sample}] {_beginning(text)}\n{answer.text}\n\n")


def _beginning(text: str, length: int = 72) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
