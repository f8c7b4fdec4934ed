"""The command line: the commands, the exit codes, and the only catch-all of the project.

Nothing heavy is imported here, so that `scanlake --help` is fast: a command's module is imported when the command
is called. A command is a line in `_PANELS` and a function `run` in its module. The docstring of `run` begins with
the line in the table. A positional parameter of `run` receives the `CommandContext`.
"""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
import difflib
import gc
import importlib
import inspect
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Literal, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from pipeline.errors import (
    BugError,
    ExitCode,
    RunInterrupted,
    ScanlakeError,
    SettingsError,
    StorageError,
    root_cause,
    to_scanlake_error,
)
from pipeline.global_options import GlobalOptions, hide_option, simplify_types, tokens_in_environment
from pipeline.version import __version__

NAME: Final = "scanlake"


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module with its `run`, its one-line help, and its group in the list of commands."""

    module: str
    help: str
    panel: str


_PANELS: Final = {
    "Set up": {
        "init": "Create the settings file; prompt for base URL and token.",
        "doctor": "Check settings, network, token, clock, disk and lake; every problem has a hint.",
        "settings": "Show every setting with its value and its origin.",
    },
    "Fetch data": {
        "plan": "Estimate calls, time, rows and disk space of the next sync.",
        "sync": "Fetch everything that changed in the service into the lake.",
        "watch": "Run a sync at every interval, unattended.",
        "images": "Download the images of uploads into the lake, checked and named by their hash.",
        "images export": "Copy stored images into a folder, with checksums and a manifest.",
        "verify": "Compare the lake with the service and repair differences (`check` checks the lake's own files).",
    },
    "Maintain the lake": {
        "compact": "Merge small parts into large parts, so that queries stay fast.",
        "publish": "Publish the lake again for local readers, or copy it to object storage.",
        "snapshots": "List the published snapshots, their state, and why each is kept.",
        "rollback": "Publish an earlier snapshot again and pause syncs.",
        "unpause": "Allow syncs again after a rollback.",
        "check": "Check the lake's own files and repair damage (`verify` compares with the service).",
        "replay": "Rebuild all tables from the raw documents, without calls to the service.",
        "purge": "Erase files from the lake and from every earlier snapshot.",
        "backup": "Copy the lake into a folder or to object storage, or bring an earlier backup there up to date.",
        "restore": "Copy a backup into the lake's folder, which must be empty or new.",
    },
    "Use the data": {
        "status": "Show how current and how complete the lake is.",
        "dashboard": "Write or serve a self-contained HTML page about the lake.",
        "query": "Query the lake with SQL.",
        "export": "Write tables to files, or to one workbook or database.",
        "changes": "List the files that were added, changed or deleted since a time, with the columns that differ.",
        "tables": "List the tables, or describe one.",
        "catalog": "Print the path of the catalog, or write one catalog for all sources.",
        "report": "Download the PDFs of many files into a folder with a manifest.",
        "report verify": "Check checksums, PDFs, manifest and signature of a report folder.",
        "mcp": "Serve the lake to a program that speaks the Model Context Protocol.",
        "share": "Create share links to files, by default without e-mail.",
    },
    "Look into the service": {
        "files": "Search the files in the service, without a lake.",
        "file": "Show one file as the service has it now, without a lake.",
    },
    "Try it out": {
        "demo": "Run the main workflow against the emulator: sync, change, sync, verify, report, query.",
        "emulator": "Run a local emulator of the service on 127.0.0.1.",
    },
}
"""The commands with their help, by panel, in the order of the help. A new command is one line here."""

COMMANDS: Final = {
    name: Command(f"pipeline.commands.{name.replace(' ', '_')}", line, panel)
    for panel, lines in _PANELS.items()
    for name, line in lines.items()
}

_SYNONYMS: Final = {"prune": "compact", "fetch": "sync", "pull": "sync", "serve": "dashboard", "resume": "unpause"}
"""Commands of other tools, and what scanlake has for them."""

_IRREVERSIBLE: Final = frozenset({"purge", "share"})
_ALIASES: Final = {"help": "--help", "version": "--version"}

_UTF8_MODE: Final = ("-X", "utf8")
_GC_THRESHOLDS: Final = (20_000, 20, 20)
"""Collect cycles rarely: importing `sync` triggers 13 collections instead of 197, and a crawl creates few cycles."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with an `ExitCode`."""
    if arguments is None:
        _ensure_utf8_mode()
    _reopen_closed_std_streams()
    _set_stream_encodings()
    if arguments is None:
        file = _StandardOutput(1, "wb", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(file), "utf-8", "backslashreplace", line_buffering=file.isatty()
        )
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


class _StandardOutput(io.FileIO):
    """Standard output that keeps its first error and drops what is written after it: no flush at exit fails again."""

    errno: ClassVar[int | None] = None  # of the process; the exception would keep the frames of the command alive

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]
        """Write, or raise OSError once."""
        if self.errno is not None:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            _StandardOutput.errno = error.errno
            raise


def _ensure_utf8_mode() -> None:
    """Start the process again in Python's UTF-8 mode if the locale has another encoding, such as ASCII in LANG=C.

    Arguments, file names and the processes that scanlake starts are UTF-8 then, whatever the locale.
    """
    own_arguments = sys.orig_argv[1:]
    if sys.getfilesystemencoding() != "utf-8" and sys.executable and own_arguments[:2] != list(_UTF8_MODE):
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *_UTF8_MODE, *own_arguments])  # noqa: S606 - this program


def _set_stream_encodings() -> None:
    """Read and write UTF-8, also if PYTHONIOENCODING names another encoding. Half a surrogate pair is escaped."""
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper) and (stream.encoding.lower(), stream.errors) != ("utf-8", errors):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _reopen_closed_std_streams() -> None:
    """Reopen closed standard streams on /dev/null, so that no opened file gets descriptor 0, 1 or 2."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        mode = os.O_RDONLY if name == "stdin" else os.O_WRONLY
        null = os.open(os.devnull, mode)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        os.set_inheritable(number, True)  # noqa: FBT003
        stream = open(number, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: PTH123, SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)  # keeps the descriptor open when another stream replaces this one


def _run(arguments: list[str]) -> int:
    try:
        _refuse_token(arguments)
        if arguments and arguments[0] in _ALIASES:
            arguments = [*arguments[1:], _ALIASES[arguments[0]]]
        code = simplify_types(get_command(app)).main(args=arguments, prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:  # the only catch-all: no traceback reaches the screen
        # typer and rich turn a broken pipe into SystemExit.
        cause = root_cause(error.__context__ if isinstance(error, SystemExit) and error.__context__ else error)
        if isinstance(cause, BrokenPipeError):  # the reader of stdout has left, as `head` does
            return ExitCode.BROKEN_PIPE
        if isinstance(cause, OSError) and _StandardOutput.errno is not None:
            cause = StorageError.from_errno("Standard output", _StandardOutput.errno)
        elif isinstance(error, SystemExit):
            raise
        return _report_failure(cause, arguments)
    if code == ExitCode.INTERRUPTED and not isinstance(code, ExitCode):  # typer turns Ctrl-C into this
        return _report_failure(RunInterrupted("Interrupted."), arguments)
    return int(code or ExitCode.OK)


# Commands, imported when called


class _LazyCommands(TyperGroup):
    """The commands of the table; a module is imported only to run its command."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a placeholder with the command's line, for the help and for shell completion."""
        command = COMMANDS.get(cmd_name)
        return command and _to_click(cmd_name, _placeholder, command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command's module and return the command."""
        name, *rest = args
        if rest and f"{name} {rest[0]}" in COMMANDS:
            name, *rest = f"{name} {rest[0]}", *rest[1:]
        command = COMMANDS.get(name)
        if command is not None:
            # Completion needs the global options, the help of a command is short without them.
            function = _wrap_command(_import_module(command.module).run, hides_global=not ctx.resilient_parsing)
            return name, _to_click(name, function, command), rest
        if not ctx.resilient_parsing:
            similar = _suggest_commands(name)
            ctx.fail(f"No such command: {name}." + (f" Did you mean {similar[0]}?" if similar else ""))
        return None, None, rest


def _suggest_commands(name: str) -> list[str]:
    """Return the command that was probably meant; never one whose effect cannot be undone."""
    if name in _SYNONYMS:
        return [_SYNONYMS[name]]
    return difflib.get_close_matches(name, [command for command in COMMANDS if command not in _IRREVERSIBLE], n=1)


def _import_module(name: str) -> Any:
    """Import a module of the product. Raises `ScanlakeError` for a damaged installation, which typer would hide."""
    try:
        return importlib.import_module(name)
    except (EOFError, ImportError, SyntaxError, ValueError) as error:  # of a module or a .pyc that was cut short
        message = f"{name} cannot be imported: {type(error).__name__}: {error}."
        raise ScanlakeError(message, hint="Install scanlake again: a file of its installation is damaged.") from error


_MARKUP: Final[Literal["rich"] | None] = "rich" if shutil.get_terminal_size().columns >= 80 else None
"""The help on narrow terminals is plain lines: panels with five columns would cut the names of options."""

app = typer.Typer(
    name=NAME, cls=_LazyCommands, rich_markup_mode=_MARKUP, context_settings={"help_option_names": ["-h", "--help"]}
)


def _placeholder() -> None:
    """Do nothing: the help of all commands imports no command."""


def _to_click(name: str, function: Callable[..., Any], command: Command) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
    text = command.help if function is _placeholder else None
    single.command(name, help=text, short_help=command.help, rich_help_panel=command.panel, epilog=_EPILOG)(function)
    return simplify_types(get_command(single))


_EPILOG: Final = "Global options, such as --config, --lake, --json, --quiet and --verbose: see `scanlake --help`."
_CLICK_CONTEXT: Final = inspect.Parameter("click_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
_GLOBAL_OPTIONS: Final = tuple(
    parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for parameter in inspect.signature(GlobalOptions).parameters.values()
)


def _wrap_command(run: Callable[..., ExitCode | None], *, hides_global: bool) -> Callable[..., ExitCode | None]:
    """Return `run` with the signature that typer sees: its own options and the global options, without the context."""
    parameters = inspect.signature(run).parameters.values()
    own = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    takes_context = len(own) < len(parameters)
    added = map(hide_option, _GLOBAL_OPTIONS) if hides_global else _GLOBAL_OPTIONS

    def command(click_context: typer.Context, **options: Any) -> ExitCode | None:
        own_options = GlobalOptions(**{field.name: options.pop(field.name) for field in fields(GlobalOptions)})
        context = _import_module("pipeline.context").create_context(own_options.merged_over(click_context.obj))
        try:
            return run(context, **options) if takes_context else run(**options)
        except EOFError as error:
            raise BugError(error) from error  # typer takes it for Ctrl-D, and would hide it

    command.__doc__ = _unwrap_paragraphs(run.__doc__ or "")
    command.__signature__ = inspect.Signature([_CLICK_CONTEXT, *own, *added])  # type: ignore[attr-defined]
    return command


def _unwrap_paragraphs(text: str) -> str:
    """Return the text with one line per paragraph: the help wraps at the terminal's width. Lists keep their lines."""
    return "\n\n".join(
        paragraph
        if any(line.startswith((" ", "- ", "* ")) for line in paragraph.splitlines())
        else " ".join(paragraph.splitlines())
        for paragraph in inspect.cleandoc(text).split("\n\n")
    )


def _show_version(requested: bool) -> None:  # noqa: FBT001 - typer calls it
    if requested:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


def _root(
    click_context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - handled by its callback
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit.")
    ] = False,
    **options: Any,
) -> None:
    """Copy every file of a file/scan service into a local data lake that is queried with SQL."""
    click_context.obj = GlobalOptions(**options)
    if click_context.invoked_subcommand is None:
        typer.echo(click_context.get_help())
        raise typer.Exit(ExitCode.USAGE)


_root_parameters = list(inspect.signature(_root).parameters.values())[:-1]
_root.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in _root_parameters), *_GLOBAL_OPTIONS]
)
app.callback(invoke_without_command=True)(_root)


# Failures


def _refuse_token(arguments: list[str]) -> None:
    for token in tokens_in_environment():
        if len(token) >= 4 and any(token in argument for argument in arguments):
            raise _TOKEN_ON_COMMAND_LINE


_TOKEN_ON_COMMAND_LINE: Final = SettingsError(
    "The token must not be on the command line: other users can list it.",
    hint="Put the token into SCANLAKE_TOKEN, or into a file of mode 600 that --token-file names.",
)


def _report_failure(error: BaseException, arguments: Sequence[str]) -> int:
    """Write one line to stderr, one object to stdout with `--json`, and the traceback to the log. Return the code."""
    logs = importlib.import_module("pipeline.logs")
    log_file = None if isinstance(error, TyperException) else logs.log_traceback(error)
    failure = _to_failure(error)
    if log_file is not None and isinstance(failure, BugError):
        failure.hint = f"Report it with the traceback in {log_file}."
    message, hint = logs.to_one_line(failure.message), logs.to_one_line(failure.hint)
    if not message.endswith((".", "?", "!")):
        message += "."
    error_type, exit_code = type(failure).__name__, failure.exit_code
    payload = {"error": message, "hint": hint, "error_type": error_type, "exit_code": exit_code}
    line = logs.format_failure_event(payload) if "--log-json" in arguments else f"{NAME}: {message} {hint}".rstrip()
    traceback = logs.format_traceback(error) if os.environ.get("SCANLAKE_DEBUG") else ""
    if "--json" in arguments:
        with suppress(OSError):  # the exit code is enough
            sys.stdout.write(json.dumps(payload) + "\n")
            sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.write(f"{traceback}{line}\n")
        sys.stderr.flush()
    return exit_code


def _to_failure(error: BaseException) -> ScanlakeError:
    if isinstance(error, TyperException):
        return _usage_error(error)
    if isinstance(error, typer.Abort):
        return RunInterrupted("Interrupted.")
    return to_scanlake_error(error)


def _usage_error(error: TyperException) -> SettingsError:
    if getattr(error, "option_name", None) == "--token":
        return _TOKEN_ON_COMMAND_LINE
    similar = getattr(error, "possibilities", None)
    message = getattr(error, "message", "") if similar else error.format_message()
    question = f" Did you mean {similar[0]}?" if similar else ""
    click_context = getattr(error, "ctx", None)
    path = click_context.command_path if click_context is not None else NAME
    return SettingsError(
        message.rstrip(".?") + ("?" if message.endswith("?") else ".") + question, hint=f"See `{path} --help`."
    )
