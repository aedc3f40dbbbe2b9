"""`alula chat`: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli import options
from alula.cli.answers import summary
from alula.cli.console import print_dim, print_error
from alula.cli.interrupt import interruptible
from alula.cli.prompts import checked
from alula.cli.session import open_llm
from alula.errors import AlulaError, LengthError, ResourceError, UsageError
from alula.sampling.params import SamplingParams

if TYPE_CHECKING:
    from alula.engine.events import Request
    from alula.engine.llm import LLM
    from alula.engine.outputs import Delta, RequestOutput

_HELP = (
    "/reset  forget the conversation",
    "/help   this list",
    "/exit   leave (so does Ctrl-D)",
    "Ctrl-C  stop the answer",
)
_GO_ON = "type /reset to forget the conversation, or start alula chat with a larger --max-length"


def chat(
    model: options.Model = "smollm2",
    system: Annotated[
        str | None,
        typer.Option(help="What the model is told before the conversation.", metavar="TEXT"),
    ] = None,
    max_tokens: options.MaxTokens = 1024,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    speculation: options.Speculation = "auto",
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    cache_tokens: options.CacheTokens = None,
    max_length: options.MaxLength = None,
    graphs: options.Graphs = True,
) -> None:
    """Talk with a model.

    Answers stream; the conversation is kept, and its keys are reused. Type /help for what can be
    typed. From a pipe every line is one message.
    """
    params = SamplingParams(
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
    )
    llm = open_llm(
        model,
        device=device,
        dtype=dtype,
        speculation=speculation,
        drafter=drafter,
        max_sequences=1,
        max_length=max_length,
        cache_tokens=cache_tokens,
        graphs=graphs,
    )
    conversation = Conversation(llm, params, system)
    if sys.stdin.isatty():
        print_dim([*llm.notes, f"{llm.model.source.name} · /help for help, Ctrl-D to leave"])
        _talk(conversation, _typed())
    else:
        _talk(conversation, _piped(), interactive=False)


class Conversation:
    """The messages so far and the model that answers them."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)

    def reset(self) -> None:
        """Forget all but the system message."""
        self._messages = list(self._opening)

    def say(self, text: str) -> None:
        """Send a message and stream the answer to standard output.

        A stopped answer stays in the conversation as far as it came. Raises UsageError where the
        conversation no longer fits; the message is then not part of it.
        """
        self._messages.append({"role": "user", "content": text})
        shown: list[str] = []
        try:
            output = self._answer(shown)
        except LengthError as error:
            raise LengthError(error.what, error.why, _GO_ON) from error
        finally:
            self._remember("".join(shown))
        if output is None:
            print_dim(["stopped"])
            return
        print_dim([summary([output], output.seconds, sampled=not self._params.greedy)])
        self._say_if_full(output)

    def _answer(self, shown: list[str]) -> RequestOutput | None:
        """The finished answer, None where it was stopped; its text so far in `shown`."""
        with interruptible() as interrupt:

            def show(_request: Request, delta: Delta) -> None:
                if interrupt.requested:
                    raise _Stopped
                shown.append(delta.text)
                sys.stdout.write(delta.text)
                sys.stdout.flush()

            try:
                (output,) = self._llm.chat(self._messages, self._params, on_delta=show)
            except _Stopped:
                return None
            finally:
                sys.stdout.write("\n" if shown else "")
                sys.stdout.flush()
        return output

    def _remember(self, answer: str) -> None:
        if answer:
            self._messages.append({"role": "assistant", "content": answer})
        else:
            self._messages.pop()

    def _say_if_full(self, output: RequestOutput) -> None:
        longest = self._llm.engine.max_length
        if len(output.prompt_token_ids) + len(output.outputs[0].token_ids) >= longest:
            print_error(
                ResourceError(
                    "the answer was cut",
                    f"the conversation fills its context of {longest} tokens",
                    _GO_ON,
                )
            )


class _Stopped(Exception):  # noqa: N818  no error: it carries Ctrl-C out of the engine's loop
    """The person has stopped the answer."""


def _talk(conversation: Conversation, lines: Iterator[str], interactive: bool = True) -> None:
    """Answer line after line. Where somebody is there to read it, an error ends only its turn."""
    for line in lines:
        text = line.strip()
        if text == "/exit":
            return
        try:
            _take(conversation, checked(text, "standard input"))
        except AlulaError as error:
            if not interactive:
                raise
            print_error(error)


def _take(conversation: Conversation, text: str) -> None:
    if text == "/reset":
        conversation.reset()
        print_dim(["the conversation is forgotten"])
    elif text == "/help":
        print_dim(_HELP)
    elif text.startswith("/") and " " not in text:
        raise UsageError(f"there is no {text}", "a command is /reset, /help or /exit", "type /help")
    elif text:
        conversation.say(text)


def _typed() -> Iterator[str]:
    """Lines from the terminal until Ctrl-D; Ctrl-C at the prompt only clears it."""
    with suppress(ImportError):
        importlib.import_module("readline")  # gives input() its editing keys and history
    while True:
        try:
            yield input("› ")
        except EOFError:
            print_dim([""])
            return
        except KeyboardInterrupt:
            print_dim(["", "Ctrl-D or /exit leaves"])


def _piped() -> Iterator[str]:
    try:
        yield from sys.stdin
    except UnicodeDecodeError as error:
        raise UsageError(
            "standard input is not valid UTF-8",
            f"{error.reason} at byte {error.start}",
            "send UTF-8 text",
        ) from error
