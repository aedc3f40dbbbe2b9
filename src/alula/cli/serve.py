"""`alula serve`: an OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alula.cli import options
from alula.cli.console import print_dim, progress_bar
from alula.errors import MachineError

_OPERATION = "Operation"


def serve(
    model: options.Model = "smollm2",
    host: Annotated[str, typer.Option(help="The address to listen on.", metavar="ADDRESS")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", metavar="N")] = 8000,
    name: Annotated[
        str | None,
        typer.Option(help="What clients call the model; by default MODEL.", metavar="NAME"),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="A key that clients must send; may be repeated.",
            metavar="KEY",
            envvar="ALULA_API_KEYS",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="A web origin that may call; may be repeated.", metavar="URL"),
    ] = None,
    max_queue: Annotated[
        int,
        typer.Option(
            help="Samples that may wait; more get 429.",
            metavar="N",
            min=1,
            rich_help_panel=_OPERATION,
        ),
    ] = 256,
    max_body: Annotated[
        int,
        typer.Option(
            help="Bytes of a request; more get 413.",
            metavar="N",
            min=1,
            rich_help_panel=_OPERATION,
        ),
    ] = 4 * 2**20,
    hang_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds without a finished launch after which the engine counts as hung.",
            metavar="S",
            min=0.5,
            rich_help_panel=_OPERATION,
        ),
    ] = 30.0,
    drain_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that running answers have after SIGTERM.",
            metavar="S",
            min=0.0,
            rich_help_panel=_OPERATION,
        ),
    ] = 30.0,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Start the engine anew when it dies.", rich_help_panel=_OPERATION
        ),
    ] = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            help="Where to append a line of JSON a request; by default standard error.",
            metavar="FILE",
            rich_help_panel=_OPERATION,
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
    """Serve a model over HTTP as OpenAI's API does, until SIGTERM."""
    try:
        from alula.server.messages import EngineOptions
        from alula.server.serve import ServerOptions
        from alula.server.serve import serve as run
        from alula.server.service import Limits
    except ModuleNotFoundError as error:
        raise MachineError(
            f"alula serve needs the package {error.name}",
            "the packages of the server are an extra of their own",
            "pip install 'alula[serve]'",
        ) from error
    run(
        EngineOptions(
            model=model,
            device=device,
            dtype=dtype,
            speculation=speculation,
            drafter=None if drafter is None else str(drafter),
            max_sequences=max_sequences,
            max_length=max_length,
            cache_tokens=cache_tokens,
            graphs=graphs,
        ),
        ServerOptions(
            host=host,
            port=port,
            name=name,
            api_keys=tuple(api_key or ()),
            cors_origins=tuple(cors_origin or ()),
            limits=Limits(max_queue, max_body),
            hang_timeout=hang_timeout,
            drain_timeout=drain_timeout,
            restart=restart,
            log_file=log_file,
        ),
        lambda line: print_dim([line]),
        progress_bar,
    )
