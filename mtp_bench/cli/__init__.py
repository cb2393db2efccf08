"""The command line: one file per command, each thin; heavy imports happen when a command runs.

Exit codes: 0 done; 2 bad input or usage; 3 a check failed; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from mtp_bench import __version__
from mtp_bench.cli import trees
from mtp_bench.cli.bench import bench
from mtp_bench.cli.command_line import running
from mtp_bench.cli.compare import compare
from mtp_bench.cli.evaluate import evaluate
from mtp_bench.cli.export import export
from mtp_bench.cli.import_ import import_
from mtp_bench.cli.inspect import inspect
from mtp_bench.cli.measure_cost import measure_cost
from mtp_bench.cli.merge import merge
from mtp_bench.cli.optimize_tree import optimize_tree
from mtp_bench.cli.probe import probe
from mtp_bench.cli.profile import profile
from mtp_bench.cli.quickstart import quickstart
from mtp_bench.cli.report import report
from mtp_bench.cli.train_heads import train_heads
from mtp_bench.errors import MtpBenchError

INTERRUPTED = 130

app = typer.Typer(
    name="mtp-bench",
    help="Measures multi-token-prediction decoding and finds the token tree that is really fastest on this device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_COMMANDS: dict[str, Callable[..., None]] = {
    "quickstart": quickstart,
    "profile": profile,
    "merge": merge,
    "measure-cost": measure_cost,
    "optimize-tree": optimize_tree,
    "evaluate": evaluate,
    "bench": bench,
    "compare": compare,
    "train-heads": train_heads,
    "export": export,
    "import": import_,
    "inspect": inspect,
    "report": report,
    "probe": probe,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(trees.app, name="trees")


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"mtp-bench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of errors."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    if debug:
        os.environ["MTP_BENCH_DEBUG"] = "1"


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; return its exit code."""
    command = typer.main.get_command(app)
    running.set(tuple(arguments))
    try:
        result = command.main(args=arguments, prog_name="mtp-bench", standalone_mode=False)
    except MtpBenchError as error:
        if os.environ.get("MTP_BENCH_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except Exception as error:
        # click's usage errors, wherever typer keeps its click.
        if hasattr(error, "exit_code") and hasattr(error, "show"):
            error.show()
            return int(error.exit_code)
        if os.environ.get("MTP_BENCH_DEBUG"):
            raise
        print(f"internal error: {type(error).__name__}: {error}\n  -> run with --debug and report it", file=sys.stderr)
        return 1
    # typer turns Ctrl-C into this code itself, without a word.
    if result == INTERRUPTED:
        return _interrupted()
    return result if isinstance(result, int) else 0


def _interrupted() -> int:
    print("interrupted: what was done is kept; run the same command again to go on", file=sys.stderr)
    return INTERRUPTED
