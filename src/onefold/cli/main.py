"""The command line: each verb is a module in cli/commands, imported only for the given verb."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
import typer.core

from onefold import places
from onefold.cli import extras, names, plugins, process, troubles
from onefold.config.errors import UserError
from onefold.error_codes import Code, CodedError
from onefold.exit_codes import BROKEN_PIPE, INTERRUPTED, USAGE

# A new verb of Onefold needs a line of help here, and a module cli/commands/<verb>.py with a function `command`. A verb with
# subcommands is a package with HELP, VERBS and a module for each subcommand. Dashes become underscores.
GROUPS = {
    "Run": {
        "demo": "Run the whole product once, with crashes, and verify.",
        "up": "Start a stack in the background.",
        "down": "Stop the stack; --wipe deletes its data.",
        "stop": "Stop services of the stack.",
        "start": "Start stopped services of the stack.",
        "restart": "Restart one service of the stack.",
        "kill": "Kill services of the stack, as a crash would.",
        "pause": "Pause single pipelines.",
        "resume": "End the pause of pipelines.",
        "migrate": "Create missing topics and tables.",
        "kubernetes": "Write Kubernetes resources of pipelines.",
        "grants": "Print the rights of each role in PostgreSQL.",
        "acls": "Print the rights of each service in Kafka.",
        "process": "Run the processors of pipelines.",
        "sink": "Run the Spark sink, which writes to PostgreSQL.",
        "work": "Run the workers of pipelines with jobs.",
        "audit": "Verify a pipeline continuously while it runs.",
        "dashboard": "Serve the dashboard.",
    },
    "Develop": {
        "new": "Create a small working pipeline project.",
        "ls": "List pipelines, topics and tables.",
        "check": "Check a pipeline's files, without a server.",
        "produce": "Write events to an input topic.",
        "consume": "Print the records of a topic, decoded.",
        "bench": "Measure throughput, latency and recovery.",
        "chaos": "Inject faults into a running stack, and verify.",
    },
    "Inspect": {
        "status": "Show services, connections and lag.",
        "verify": "Recompute every row from the input, and compare.",
        "explain": "Show the records and transactions behind a row.",
        "state": "Show the state of a key.",
        "contracts": "Show the schema versions of a pipeline's topics.",
        "config": "Show each setting and its origin.",
        "logs": "Show the logs of services.",
        "sql": "Open psql on the database.",
        "kafka": "Run one of Kafka's command-line tools.",
        "docs": "Print a page of the documentation.",
    },
    "Repair": {
        "dead-letters": "List rejected records, replay or drop them.",
        "rebuild": "Recompute tables from the log, and fix them.",
        "jobs": "Requeue jobs whose results are missing.",
        "reset": "Delete a pipeline's results and start it over.",
    },
}
# Only a checkout has tests.
if places.CHECKOUT:
    GROUPS["Develop"] |= {
        "test": "Run this checkout's tests.",
        "lint": "Check this checkout's code and documents.",
    }
VERBS = {verb: line for lines in GROUPS.values() for verb, line in lines.items()}
# Long-running commands, restarted after a kill, without terminal output by rich.
SERVICES = {"process", "sink", "work", "audit"}
HELP = ["-h", "--help"]


COMMANDS = "onefold.cli.commands"


class Verbs(typer.core.TyperGroup):
    """A group of placeholder commands with one line of help each. Imports a verb's module only to run the verb or show help."""

    package = COMMANDS
    lines: dict[str, str] = VERBS

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the verbs: of the top level by purpose, of a group in the order of VERBS."""
        others = {verb: line for verb, line in self.lines.items() if verb not in VERBS}
        groups = {**GROUPS, "Of installed packages": others} if self.package == COMMANDS else {"Commands": self.lines}
        for title, lines in ((title, lines) for title, lines in groups.items() if lines):
            with formatter.section(title):
                formatter.write_dl(list(lines.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the given verb, imported."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        try:
            return name, load(self.package, name) if name else stand_in, rest
        except (ModuleNotFoundError, UserError):
            if not ctx.resilient_parsing:
                raise
            return name, stand_in, rest  # shell completion must not print an error


def load(package: str, verb: str) -> Any:
    """The command of a verb, or the group of its subcommands, from its module."""
    if package == COMMANDS and verb in SERVICES:
        _import_structlog()
    name = f"{package}.{verb.replace('-', '_')}"
    if package == COMMANDS and verb not in VERBS:
        module = plugins.load(plugins.found()[verb].value, verb)
    elif package.startswith(COMMANDS):
        module = importlib.import_module(name)
    else:
        module = plugins.load(name, verb)
    if hasattr(module, "VERBS"):
        return group(module.__name__, module.VERBS, module.HELP)
    settings: dict[str, Any] = getattr(module, "CONTEXT_SETTINGS", {})
    if not settings.get("ignore_unknown_options"):  # else -h is an option of the other program, as psql's host
        settings = {**settings, "help_option_names": HELP}
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(verb, context_settings=settings)(module.command)
    return typer.main.get_command(single)


def _import_structlog() -> None:
    """Import structlog without rich. structlog uses rich for coloured tracebacks, which services do not write, and the import
    of rich would slow the start.
    """
    if "rich" in sys.modules:
        return
    missing: Any = None  # with None in sys.modules, an import raises ModuleNotFoundError
    sys.modules["rich"] = missing
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]


def stand_in() -> None:
    """The placeholder command for a verb without an imported module."""


def group(package: str, verbs: dict[str, str], text: str, callback: Callable[..., None] = stand_in) -> Any:
    """The group of a package's verbs, without importing a verb's module. `callback` has the options of the group."""
    app = typer.Typer(
        cls=Verbs,
        add_completion=package == COMMANDS,
        context_settings={"help_option_names": HELP},
        no_args_is_help=True,
        rich_markup_mode=None,
        help=text,
    )
    app.callback()(callback)
    for verb, line in verbs.items():
        app.command(verb, help=line)(stand_in)
    made: Any = typer.main.get_command(app)
    made.package, made.lines = package, verbs
    return made


def build(verb: str = "") -> Any:
    """The whole command line. For a `verb` of Onefold without the commands of installed packages, because the search for entry
    points takes as long as the start of most commands.
    """
    text = "Exactly-once stream processing from Kafka to PostgreSQL, verified.\n\nExample: onefold up && onefold status"
    return group(COMMANDS, VERBS if verb in VERBS else {**plugins.lines(), **VERBS}, text, _options)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # slow to import, and no command needs it

        typer.echo(f"onefold {metadata.version('onefold')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run a command line, and return the exit code. An error that the user can fix is one sentence on stderr, without a stack
    trace.
    """
    arguments, renamed = names.present(arguments)
    if renamed:
        sys.stderr.write(f"{renamed}\n")
    try:
        code = build(_verb(arguments)).main(args=arguments, prog_name="onefold", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except CodedError as error:
        _print_error(error, arguments)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = extras.explain(_verb(arguments), error)
        if missing is None:
            raise
        _print_error(missing, arguments)
        return missing.exit_code
    except typer.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python prints a second error at exit
        return BROKEN_PIPE
    except (OSError, UnicodeEncodeError) as error:
        found = troubles.of_file(error) if isinstance(error, OSError) else troubles.of_text(error)
        if found is None:
            raise
        _print_error(found, arguments)
        return found.exit_code
    except Exception as error:
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        return _usage(error, arguments)


def _usage(error: Any, arguments: Sequence[str]) -> int:
    """Print the parser's error and the command for help. For a group without a subcommand, print the group's help."""
    if type(error).__name__ == "NoArgsIsHelpError":  # by name: typer's copy of click is private
        sys.stderr.write(error.format_message().rstrip() + "\n")
        return USAGE
    verb = _verb(arguments)
    context = getattr(error, "ctx", None)
    hint = f"Try: {context.command_path if context else f'onefold {verb}'.rstrip()} --help"
    _print_error(UserError(Code.ARGUMENT_WRONG, error.format_message().rstrip("."), hint, USAGE), arguments)
    return USAGE


def _verb(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if not word.startswith("-")), "")


def _print_error(error: CodedError, arguments: Sequence[str]) -> None:
    sys.stderr.write((error.as_json() if "--json" in arguments else error.as_text()) + "\n")


def main() -> None:
    """The entry point of the script `onefold`."""
    end = process.prepare_end()
    process.use_utf8()
    process.raise_file_limit()
    end(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
