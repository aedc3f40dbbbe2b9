"""`alula stack`: an upgrade planned, built beside the working one, and rolled back at will."""

from __future__ import annotations

from importlib import import_module

import typer

from alula.cli.console import print_help_alone

_COMMANDS = {
    "alula.cli.stack_plan": ("plan",),
    "alula.cli.stack_env": ("apply", "switch", "rollback", "run", "adopt", "prune"),
    "alula.cli.stack_history": ("list", "log"),
    "alula.cli.stack_patches": ("patches",),
    "alula.cli.stack_probe": ("probe",),
}
_FUNCTIONS = {"list": "list_environments"}

app = typer.Typer()


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    """Plan an upgrade of the serving stack, build it beside the working one, switch, roll back."""
    print_help_alone(context)


for _module, _names in _COMMANDS.items():
    for _name in _names:
        app.command(_name)(getattr(import_module(_module), _FUNCTIONS.get(_name, _name)))
