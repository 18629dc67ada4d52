"""The command line: `anabranch …`. Commands live in modules of their own, loaded when asked for.

An error that is meant for the reader is one line on standard error and an exit code; anything else
is a defect and keeps its traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from anabranch import __version__
from anabranch.cli import (
    analyze,
    convert,
    curate,
    decode,
    demo,
    doctor,
    engine,
    evaluate,
    experiment,
    gateway_admin,
    grade,
    inspect,
    lab,
    plan,
    report,
    serve,
    solve,
    train,
    view,
)
from anabranch.errors import AnabranchError

app = typer.Typer(
    name="anabranch",
    help="Fork-join reasoning for language models: decode it, train it, measure it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anabranch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fork-join reasoning for language models."""


app.command("analyze")(analyze.analyze)
app.command("agreement")(analyze.agreement)
app.command("demo")(demo.demo)
app.command("solve")(solve.solve)
app.command("decode")(decode.decode)
app.command("inspect")(inspect.inspect)
app.command("convert")(convert.convert)
app.command("evaluate")(evaluate.evaluate)
app.command("report")(report.report)
app.command("compare")(report.compare)
app.command("plan")(plan.plan)
app.command("serve")(serve.serve)
app.command("view")(view.view)
app.command("grade")(grade.grade)
app.command("doctor")(doctor.doctor)
app.add_typer(train.app, name="train")
app.add_typer(lab.app, name="lab")
app.add_typer(engine.app, name="engine")
app.add_typer(curate.app, name="curate")
app.add_typer(gateway_admin.app, name="gateway")
app.add_typer(experiment.app, name="experiment")


def main() -> None:
    """Entry point of the `anabranch` script."""
    try:
        app()
    except AnabranchError as error:
        message = " ".join(str(error).split())
        print(f"anabranch: {message}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("anabranch: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
