"""The `alula` command: its subcommands, and what every failure looks like from outside.

Commands import torch only when they run, so that `alula --help` is quick.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from alula import __version__
from alula.cli import (
    assess,
    bench,
    chat,
    demo,
    diagnose,
    doctor,
    estimate,
    generate,
    serve,
    stack,
    train,
)
from alula.cli.console import print_error, print_error_json, print_help_alone
from alula.errors import AlulaError, MachineError, UsageError

_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_BROKEN_PIPE = 141  # 128 + SIGPIPE
_ASCII = {
    **{"µ": "u", "τ": "tau", "×": "x", "−": "-", "–": "-", "—": "-", "…": "...", "›": ">"},
    **{"·": ".", "•": "#", "│": "|", "─": "-", "└": "+", "’": "'", "“": '"', "”": '"'},
}


@dataclass
class Invocation:
    """What holds for the whole command line."""

    debug: bool = False


app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.add_typer(bench.app, name="bench")
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("train")(train.train)
app.command("diagnose")(diagnose.diagnose)
app.command("doctor")(doctor.doctor)
app.command("estimate")(estimate.estimate)
app.add_typer(stack.app, name="stack")
app.command("assess")(assess.assess)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Lossless speculative decoding that pays on the machine it runs on."""
    context.obj.debug = debug
    if version:
        sys.stdout.write(f"alula {__version__}\n")
        raise typer.Exit
    print_help_alone(context)


def main() -> NoReturn:
    """Run the command line of this process."""
    _open_closed_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; nothing but the code comes back."""
    if sys.stdout is None:
        return _report(_no_output(), False, False)
    # Known even where the command line itself is at fault.
    as_json = "--json" in _before_dashes(arguments)
    invocation = Invocation()
    _write_any_character()
    try:
        code = _invoke(arguments, invocation)
        sys.stdout.flush()
        return code
    except AlulaError as error:
        return _report(error, as_json, invocation.debug)
    except BrokenPipeError:
        _flush_or_let_go()
        return _BROKEN_PIPE
    except SystemExit:
        # Rich has seen the broken pipe first and turned standard output away from it.
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        return _report(_refused_by_the_system(error), as_json, invocation.debug)
    except Exception as error:
        return _report(_unexpected(error), as_json, invocation.debug)


def _before_dashes(arguments: list[str]) -> list[str]:
    """What is alula's own; behind `--` stands a command of somebody else's."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _invoke(arguments: list[str], invocation: Invocation) -> int:
    command = get_command(app)
    try:
        with command.make_context("alula", arguments, obj=invocation) as context:
            command.invoke(context)
    except AlulaError as error:
        _name_options(error, command, arguments)
        raise
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        raise _refused(error) from error
    return 0


def _name_options(error: AlulaError, command: Any, arguments: list[str]) -> None:
    """Call what the library names max_tokens by the name that was typed, --max-tokens; what is
    quoted is somebody's own words.
    """
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    named = {option.name: option.opts[0] for option in command.params}
    known = [name for name, flag in named.items() if "_" in name and flag.startswith("--")]
    if known:
        pattern = re.compile(rf"(?<!['\"])\b({'|'.join(known)})\b(?!['\"])")
        error.what, error.why, error.fix = (
            pattern.sub(lambda match: named[match[0]], part)
            for part in (error.what, error.why, error.fix)
        )


def _refused(error: typer.TyperException) -> UsageError:
    """A command line that typer does not take."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "alula"
    return UsageError(
        error.format_message().rstrip("."),
        f"{path} takes only what its help lists",
        f"see {path} --help",
    )


def _unexpected(error: Exception) -> AlulaError:
    unexpected = AlulaError(
        "alula failed in a way it should not",
        f"{type(error).__name__}: {error}",
        "run alula --debug … to see where, and report it with the command and this message",
    )
    unexpected.__cause__ = error
    return unexpected


def _refused_by_the_system(error: OSError) -> MachineError:
    failure = MachineError(
        "the system did not let alula go on",
        str(error),
        "look at what it names: a full disk, a permission, standard output",
    )
    failure.__cause__ = error
    return failure


def _no_output() -> MachineError:
    return MachineError(
        "there is nowhere to write the answer",
        "standard output is closed",
        "leave it open, or send it to a file",
    )


def _report(error: AlulaError, as_json: bool, debug: bool) -> int:
    with suppress(OSError):  # what is reported may be that nothing can be written
        if debug:
            traceback.print_exception(error)
        print_error(error)
    if as_json:
        with suppress(OSError):
            print_error_json(error)
    _flush_or_let_go()
    return error.exit_code


def _flush_or_let_go() -> None:
    """Flush standard output; what it does not take would make Python complain at exit."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed_streams() -> None:
    """Take up descriptors 0 to 2 where they are closed, before a model's file gets their number.

    What is typed is then nothing, and remarks go nowhere; `run` refuses to lose an answer.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115  lives as long as we do
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def _write_any_character() -> None:
    """An answer may hold characters that the terminal's encoding lacks: they are spelled out."""
    codecs.register_error("spelled", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Units and signs in ASCII, so that a microsecond does not lose its unit."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in missing), error.end
