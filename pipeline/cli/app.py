"""The command line: the commands, the exit codes, and the only catch-all of the project.

A command is a module of `pipeline.cli.commands` with a function `run`, and a line here. Its module is imported only
when it is called, so that `scanlake --help` is fast. A positional parameter of `run` receives the `CommandContext`. A
module with `TAKES_ALL_SOURCES` also has `--all`: a process for each source (see `pipeline.cli.sources`). The end of one
with `IS_MONITORED` is reported (see `pipeline.cli.monitored_run`). `RESULT` is the struct that the command prints with
`--json`. `EXAMPLES` are two lines of its help.
"""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
import copy
import difflib
import errno
import gc
import importlib
import inspect
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
from msgspec import Struct
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command
from typer.models import TyperPath

from pipeline import __version__
from pipeline.cli.option_rules import check_option_rules
from pipeline.cli.options import ALL_SOURCES_PARAMETER, GlobalOptions, Location
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
from pipeline.output.formatting import escape_control_characters
from pipeline.processes.environment import tokens_in_environment
from pipeline.processes.signals import end_process, end_with_parent, interrupt_command, replace_handlers

NAME: Final = "scanlake"
_FIRST_COMMANDS: Final = ("init", "plan", "sync", "status", "query", "serve", "report", "verify", "check", "demo")
"""What a newcomer needs, in this order: shown if no command is named."""


class Command(Struct, frozen=True):
    """A command: the module with its `run`, its one-line help, and its group in the list of commands."""

    module: str
    help: str
    group: str


_LINES: Final = {
    "Set up": {
        "init": "Create the settings file; prompt for base URL and token.",
        "settings": "Show every setting with its value and its origin.",
    },
    "Fetch data": {
        "images": "Download the images of uploads into the lake, checked and named by their hash.",
        "images export": "Copy stored images into a folder, with checksums and a manifest.",
        "plan": "Estimate calls, time and disk space of the next sync.",
        "sync": "Fetch everything that changed in the service into the lake.",
        "verify": "Compare the lake with the service and repair differences (`check` checks the lake's own files).",
    },
    "Use the data": {
        "changes": "List the files that were added, changed or deleted since a snapshot, with the columns that differ.",
        "export": "Write tables to files, or to one workbook.",
        "files": "Show files as the service has them now, without a lake: by reference, by id, or by a search.",
        "mcp": "Serve the lake to a program that speaks the Model Context Protocol.",
        "query": "Query the lake with SQL.",
        "report": "Download the PDFs of many files into a folder with a manifest.",
        "serve": "Show the lake in the browser, or write its dashboard as one HTML file.",
        "share": "Create share links to files, by default without e-mail.",
        "status": "Show how current and how complete the lake is.",
        "tables": "List the tables and views, or describe one.",
    },
    "Maintain the lake": {
        "backup": "Copy the lake into a folder or to object storage, or bring an earlier backup there up to date.",
        "check": "Check settings, service, disk, lake and images, and write nothing; every problem has a hint.",
        "publish": "Copy the lake to object storage, for readers on other machines and for other engines.",
        "purge": "Erase files from the lake and from every earlier snapshot.",
        "rebuild": "Make all tables again from the documents, without calls to the service.",
        "repair": "Repair the damage in the lake that `check` finds, without calls to the service.",
        "restore": "Copy a backup into the lake's folder, which must be empty or new.",
        "rollback": "Publish an earlier snapshot again and pause syncs, or allow them again.",
        "snapshots": "List the published snapshots, their state, and why each is kept.",
    },
    "Try it out": {
        "demo": "Run the main workflow against the emulator: sync, change, sync, verify, report, query.",
        "emulator": "Run a local emulator of the service on 127.0.0.1.",
    },
}
"""Every command by its group and name, with its line in the help: the first of its `run`, which is not imported yet."""
COMMANDS: Final = {
    name: Command(f"pipeline.cli.commands.{name.replace(' ', '_')}", line, group)
    for group, commands in _LINES.items()
    for name, line in commands.items()
}
_IRREVERSIBLE: Final = frozenset({"purge", "share"})  # never suggested
_OTHER_WORDS: Final = {
    **dict.fromkeys(("pull", "fetch", "run", "start", "update", "refresh", "crawl", "import", "load", "get"), "sync"),
    **dict.fromkeys(("login", "auth", "setup", "configure", "new", "create", "connect"), "init"),
    **dict.fromkeys(("config", "set", "env"), "settings"),
    **dict.fromkeys(("list", "ls", "schema", "describe", "show", "columns"), "tables"),
    **dict.fromkeys(("sql", "select", "shell", "duckdb"), "query"),
    **dict.fromkeys(("ui", "web", "open", "browse", "dashboard", "server"), "serve"),
    **dict.fromkeys(("info", "state", "stats", "ps", "watch", "log", "logs", "history"), "status"),
    **dict.fromkeys(("diff", "compare"), "changes"),
    **dict.fromkeys(("search", "find", "file"), "files"),
    **dict.fromkeys(("dump", "save", "download"), "export"),
    **dict.fromkeys(("test", "doctor", "validate", "ping"), "check"),
    **dict.fromkeys(("fix", "recover"), "repair"),
    **dict.fromkeys(("push", "deploy", "upload"), "publish"),
    **dict.fromkeys(("undo", "revert"), "rollback"),
    "estimate": "plan",
    "pdf": "report",
    "mock": "emulator",
    "help": "--help",
    "version": "--version",
}
"""Words of other tools, and what they are here."""
_GC_THRESHOLDS: Final = (20_000, 20, 20)
"""Collect cycles rarely: importing `sync` triggers 13 collections instead of 197, and a crawl creates few cycles."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with an `ExitCode`."""
    end_with_parent()
    _prepare_standard_streams()
    gc.set_threshold(*_GC_THRESHOLDS)
    argv = list(sys.argv[1:] if arguments is None else arguments)
    sys.excepthook = lambda _, error, __: _report_failure(error, argv)  # of a query that only the end stops
    sys.exit(_run(argv))


def _prepare_standard_streams() -> None:
    """Open closed streams on /dev/null, so that no opened file gets their descriptors; write UTF-8 everywhere.

    What the encoding cannot write, such as half a surrogate pair, is escaped.
    """
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(null, True)  # noqa: FBT003
    os.close(null)
    for number, (name, errors) in enumerate(_STREAM_ERRORS.items()):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


_STREAM_ERRORS: Final = {"stdin": "strict", "stdout": "backslashreplace", "stderr": "backslashreplace"}


def _run(arguments: list[str]) -> int:
    try:
        _refuse_bytes(arguments)
        _refuse_token(arguments)
        code = _describe_types(get_command(app)).main(args=arguments, prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:  # the only catch-all: no traceback reaches the screen
        # typer and rich turn a broken pipe into SystemExit.
        cause = root_cause(error.__context__ if isinstance(error, SystemExit) and error.__context__ else error)
        if isinstance(cause, OSError) and cause.filename is None and cause.errno in _OUTPUT_ERRNOS:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit would fail, too
            if isinstance(cause, BrokenPipeError):  # the reader of stdout has left, as `head` does
                return ExitCode.BROKEN_PIPE
            cause = StorageError.from_errno("Standard output", cause.errno)
        elif isinstance(error, SystemExit):
            raise
        return _report_failure(cause, arguments)
    if code == ExitCode.INTERRUPTED and not isinstance(code, ExitCode):  # typer turns Ctrl-C into this
        return _report_failure(RunInterrupted("Interrupted."), arguments)
    return int(code or ExitCode.OK)


_OUTPUT_ERRNOS: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT})
"""Errors of an output stream. Those of a file have its name."""


# Commands, imported when called

_ARGV: Final = f"{__name__}.argv"


class _LazyCommands(TyperGroup):
    """The commands of `COMMANDS`; a module is imported only to run its command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the command line for `--all`."""
        ctx.meta[_ARGV] = tuple(args)
        return list(super().parse_args(ctx, args))

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
            module = _import_module(command.module)
            function = _wrap_command(module, for_completion=ctx.resilient_parsing)
            return name, _to_click(name, function, command, module.EXAMPLES), rest
        if not ctx.resilient_parsing:
            harmless = [command for command in COMMANDS if command not in _IRREVERSIBLE]
            similar = next(iter(difflib.get_close_matches(name, harmless, n=1)), None)
            meant = _OTHER_WORDS.get(name.lower(), similar)
            ctx.fail(f"No such command: {name}." + (f" Did you mean {meant}?" if meant else ""))
        return None, None, rest


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


def _to_click(name: str, function: Callable[..., Any], command: Command, examples: Sequence[str] = ()) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
    text = command.help if function is _placeholder else None
    epilog = "\n\n".join(["Examples:", *(f"$ {NAME} {example}" for example in examples), _EPILOG])
    single.command(name, help=text, short_help=command.help, rich_help_panel=command.group, epilog=epilog)(function)
    return _describe_types(get_command(single))


def _describe_types(command: Any) -> Any:
    """Name the types of a command's options in plain words: NUMBER, not `<float range>`; nothing for a flag.

    Every path becomes a `Location`.
    """
    for parameter in command.params:
        if type(parameter.type) is TyperPath:
            parameter.type = Location()
        if parameter.param_type_name == "argument":
            parameter.type = copy.copy(parameter.type)
            parameter.type.get_metavar = lambda param, ctx: ""  # noqa: ARG005 - its name is enough
        elif parameter.metavar is None and not parameter.is_flag:
            parameter.metavar = "" if parameter.count else TYPE_NAMES.get(parameter.type.name)
    return command


TYPE_NAMES: Final = {
    "int": "INTEGER",
    "int range": "INTEGER",
    "float": "NUMBER",
    "float range": "NUMBER",
    "str": "TEXT",
    "path": "PATH",
}
_EPILOG: Final = "Global options: see `scanlake --help`. Exit codes: see docs/operations.md."
_CLICK_CONTEXT: Final = inspect.Parameter("click_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
_GLOBAL_OPTIONS: Final = tuple(
    parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for parameter in inspect.signature(GlobalOptions).parameters.values()
)


def _wrap_command(module: Any, *, for_completion: bool) -> Callable[..., ExitCode | None]:
    """Return `run` as typer sees it: its own options and the global ones, without the context.

    The help of a command is short without the global options, completion needs them.
    """
    run = module.run
    parameters = inspect.signature(run).parameters.values()
    own = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    takes_context = len(own) < len(parameters)
    takes_all = hasattr(module, "TAKES_ALL_SOURCES")
    own += [ALL_SOURCES_PARAMETER] if takes_all else []
    added = _GLOBAL_OPTIONS if for_completion else map(_hide_option, _GLOBAL_OPTIONS)

    def command(click_context: typer.Context, **options: Any) -> ExitCode | None:
        own_options = GlobalOptions(**{name: options.pop(name) for name in GlobalOptions.__struct_fields__})
        check_option_rules(click_context, own)
        create_context = _import_module("pipeline.cli.context").create_context
        result_type = getattr(module, "RESULT", None)
        context = create_context(own_options.merged_over(click_context.obj), result_type)
        call = partial(run, context) if takes_context else run
        if takes_all and options.pop(ALL_SOURCES_PARAMETER.name):
            run_for_all = _import_module("pipeline.cli.sources").run_for_all_sources
            call, options = partial(run_for_all, context, click_context.info_name, click_context.meta[_ARGV]), {}
        elif hasattr(module, "IS_MONITORED") and not options.get("dry_run"):
            run_monitored = _import_module("pipeline.cli.monitored_run").run_monitored
            call = partial(run_monitored, context, click_context.info_name, run)
        replace_handlers(interrupt_command, end_process)  # all is imported
        try:
            return ExitCode(call(**options))
        except EOFError as error:
            raise BugError(error) from error  # typer takes it for Ctrl-D, and would hide it

    paragraphs = inspect.cleandoc(run.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(paragraph.splitlines()) for paragraph in paragraphs)  # the help wraps
    command.__signature__ = inspect.Signature([_CLICK_CONTEXT, *own, *added])  # type: ignore[attr-defined]
    return command


def _hide_option(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter with its option left out of the help."""
    kind, option = parameter.annotation.__origin__, parameter.annotation.__metadata__[0]
    hidden = copy.copy(option)
    hidden.hidden = True
    return parameter.replace(annotation=Annotated[kind, hidden])


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
        typer.echo(_format_first_commands())
        raise typer.Exit(ExitCode.USAGE)


def _format_first_commands() -> str:
    """Return the first commands with their lines of the help, and where the others are."""
    described = (
        textwrap.fill(COMMANDS[name].help, 80, initial_indent=f"  {name:8}", subsequent_indent=" " * 10)
        for name in _FIRST_COMMANDS
    )
    head = textwrap.fill(_root.__doc__ or "", 80)
    return "\n".join([head, "", *described, "", f"All commands and global options: `{NAME} --help`."])


_root_parameters = list(inspect.signature(_root).parameters.values())[:-1]
_root.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in _root_parameters), *_GLOBAL_OPTIONS]
)
app.callback(invoke_without_command=True)(_root)


# Failures

_TOKEN_IN_BASE_URL: Final = re.compile(r"\bbase_url=\S*[?&]token=[^&]")


_TEXT_VARIABLES: Final = re.compile(r"(SCANLAKE|PYICEBERG)_.*|HOME|TMPDIR|LOGNAME|USER", re.IGNORECASE | re.DOTALL)
"""Names of the variables whose values become paths and texts of scanlake."""


def _refuse_bytes(arguments: list[str]) -> None:
    """Raise `SettingsError` for bytes that are no UTF-8 text: the only place where bytes of others come in."""
    texts = {f"Argument {number}": text for number, text in enumerate(arguments, start=1)}
    texts |= {name: name + value for name, value in os.environ.items() if _TEXT_VARIABLES.fullmatch(name)}
    with suppress(OSError):  # a command that needs no folder runs in one that was deleted, too
        texts["The current folder"] = os.getcwd()  # noqa: PTH109 - text alone
    for subject, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SettingsError(f"{subject} is not UTF-8 text.", hint="Use UTF-8 text.") from None


def _refuse_token(arguments: list[str]) -> None:
    if any(map(_TOKEN_IN_BASE_URL.search, arguments)):
        raise _TOKEN_ON_COMMAND_LINE
    for token in tokens_in_environment():
        if len(token) >= 4 and any(token in argument for argument in arguments):
            raise _TOKEN_ON_COMMAND_LINE


_TOKEN_ON_COMMAND_LINE: Final = SettingsError(
    "The token must not be on the command line: other users can list it.",
    hint="Put the token into SCANLAKE_TOKEN, or into a file of mode 600 that token_file names.",
)


def _report_failure(error: BaseException, arguments: Sequence[str]) -> int:
    """Write one line to stderr, one object to stdout with `--json`, and the traceback to the log. Return the code."""
    logs = importlib.import_module("pipeline.output.logs")
    log_file = None if isinstance(error, TyperException) else logs.log_traceback(error)
    failure = _to_failure(error, arguments)
    if log_file is not None and isinstance(failure, BugError):
        failure.hint = f"Report it with the traceback in {log_file}."
    message, hint = logs.to_one_line(failure.message), logs.to_one_line(failure.hint)
    if not message.endswith((".", "?", "!")):
        message += "."
    error_type, exit_code = type(failure).__name__, failure.exit_code
    payload = {"ok": False, "exit_code": exit_code, "error": message, "hint": hint, "error_type": error_type}
    excerpt = [f"  {escape_control_characters(logs.redact(line))}" for line in failure.excerpt.splitlines()]
    line = "\n".join([f"{NAME}: {message} {hint}".rstrip(), *excerpt])
    if "--log-json" in arguments:
        line = logs.format_failure_event(payload)
    traceback = logs.format_traceback(error) if os.environ.get("SCANLAKE_DEBUG") else ""
    if "--json" in arguments:
        with suppress(OSError):  # the exit code is enough
            sys.stdout.write(json.dumps(payload) + "\n")
            sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.write(f"{traceback}{line}\n")
        sys.stderr.flush()
    return exit_code


def _to_failure(error: BaseException, arguments: Sequence[str]) -> ScanlakeError:
    if isinstance(error, TyperException):
        return _usage_error(error, arguments)
    if isinstance(error, typer.Abort):
        return RunInterrupted("Interrupted.")
    return to_scanlake_error(error)


_TYPE_IN_MESSAGE: Final = re.compile(r"\b(int|float)( range)?(?=\.$)")
_TYPE_WORDS: Final = {"int": "whole number", "float": "number"}


def _usage_error(error: TyperException, arguments: Sequence[str]) -> SettingsError:
    if getattr(error, "option_name", None) == "--token":
        return _TOKEN_ON_COMMAND_LINE
    is_dry_sync = getattr(error, "option_name", None) == "--dry-run" and "sync" in arguments
    similar = ["scanlake plan"] if is_dry_sync else getattr(error, "possibilities", None)
    message = getattr(error, "message", "")
    if not similar:
        message = _TYPE_IN_MESSAGE.sub(lambda match: _TYPE_WORDS[match[1]], error.format_message())
    question = f" Did you mean {similar[0]}?" if similar else ""
    names = [" ".join(arguments[:words]) for words in (2, 1)]
    path = " ".join([NAME, *[name for name in names if name in COMMANDS][:1]])
    return SettingsError(
        message.rstrip(".?") + ("?" if message.endswith("?") else ".") + question, hint=f"See `{path} --help`."
    )
