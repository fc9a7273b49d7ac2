"""The command line: parse, call one function, print."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train, understand and ship neural networks whose weights are only -1 and +1.",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]


@app.command()
def demo(
    all_methods: Annotated[bool, typer.Option("--all", help="Compare all six methods instead of three.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the split, the start and the noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Train binary networks on scikit-learn's digits and show what they know and don't know.

    Takes under a minute. Prints accuracy, NLL and calibration error by the mode and by the mean over
    posterior samples, before and after calibration, and the digits that the posterior is unsure of.
    """
    from bayesbinn.demo import run_demo

    run_demo(all_methods=all_methods, seed=seed, as_json=as_json)


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods with their settings and defaults."""
    from bayesbinn.methods import METHODS

    if as_json:
        rows = {m.name: {"description": m.description, "defaults": m.defaults} for m in METHODS.values()}
        typer.echo(json.dumps(rows, indent=2))
        return
    for method in METHODS.values():
        typer.echo(f"{method.name:10} {method.description}")
        settings = (f"{key}={method.defaults[key]}" if key in method.defaults else key for key in method.settings)
        typer.echo(f"{'':10} {', '.join(settings)}\n")


@app.command()
def info(as_json: Json = False) -> None:
    """Tell versions, and which kernels are in use, and why."""
    from bayesbinn.environment import describe

    facts = describe()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        typer.echo(f"{key:{width}}  {value}")
