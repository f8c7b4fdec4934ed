"""The command line: the verbs, the exit codes, and the only catch-all of the project.

Nothing heavy is imported here, so that `scanlake --help` answers at once: a verb's module is imported when
the verb is called. A verb is a line in `VERBS` and a function `run` in its module, whose first argument is the
`Call` and whose docstring begins with the line in the table.
"""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
import difflib
import errno
import gc
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from pipeline import __version__
from pipeline.errors import Exit, Interrupted, ScanlakeError, SettingsError, StorageError
from pipeline.flags import Flags, tokens_around

NAME: Final = "scanlake"
_SET: Final = "Set it up"
_FETCH: Final = "Bring the data in"
_KEEP: Final = "Keep the lake"
_USE: Final = "Use the data"
_TRY: Final = "Try it out"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: the module that holds its `run`, what it does in one line, and where the help lists it."""

    module: str
    help: str
    panel: str


VERBS: Final = {
    "init": Verb(
        "pipeline.commands.init", "Set scanlake up: ask for address and token, and write a settings file.", _SET
    ),
    "doctor": Verb(
        "pipeline.commands.doctor", "Look whether everything is in order, and say what to do where not.", _SET
    ),
    "settings": Verb("pipeline.commands.settings", "Show every setting, its value, and where that comes from.", _SET),
    "plan": Verb("pipeline.commands.plan", "Say what a sync would take: files, calls, minutes, rows, disk.", _FETCH),
    "sync": Verb("pipeline.commands.sync", "Bring the lake up to date with the service.", _FETCH),
    "watch": Verb("pipeline.commands.watch", "Sync again and again, unattended.", _FETCH),
    "verify": Verb(
        "pipeline.commands.verify", "Hold the lake against the service, heal what differs, and prove it.", _FETCH
    ),
    "compact": Verb(
        "pipeline.commands.compact", "Fold many small parts into few large ones, so that queries stay fast.", _KEEP
    ),
    "publish": Verb("pipeline.commands.publish", "Publish the lake anew, where it lies now or is mounted.", _KEEP),
    "snapshots": Verb("pipeline.commands.snapshots", "List the snapshots, and which of them are kept.", _KEEP),
    "rollback": Verb("pipeline.commands.rollback", "Go back to an earlier snapshot, and pause syncing.", _KEEP),
    "resume": Verb("pipeline.commands.resume", "Let syncs run again after a rollback.", _KEEP),
    "check": Verb("pipeline.commands.check", "Find what is damaged in the lake, name it, and mend it.", _KEEP),
    "replay": Verb("pipeline.commands.replay", "Rebuild all tables from the raw documents alone.", _KEEP),
    "purge": Verb("pipeline.commands.purge", "Erase files from the lake and from every earlier snapshot.", _KEEP),
    "backup": Verb("pipeline.commands.backup", "Copy the lake, as it stands, into an empty folder.", _KEEP),
    "status": Verb("pipeline.commands.status", "Say how current and how complete the lake is.", _USE),
    "dashboard": Verb(
        "pipeline.commands.dashboard", "Show the state of the lake on one page that needs nothing but itself.", _USE
    ),
    "query": Verb("pipeline.commands.query", "Ask the lake a question in SQL.", _USE),
    "export": Verb("pipeline.commands.export", "Write the tables to files, or to one database to mail.", _USE),
    "changes": Verb(
        "pipeline.commands.changes", "List the files that were added, changed or deleted between two snapshots.", _USE
    ),
    "tables": Verb("pipeline.commands.tables", "List the tables, or describe one.", _USE),
    "catalog": Verb("pipeline.commands.catalog", "Say where the catalog is, or unite those of all sources.", _USE),
    "report": Verb("pipeline.commands.report", "Fetch the PDFs of many files into a folder that proves itself.", _USE),
    "share": Verb("pipeline.commands.share", "Create links to files; no e-mail is sent unless asked for.", _USE),
    "demo": Verb(
        "pipeline.commands.demo",
        "Show the main job on an emulated service: sync, change, sync again, verify, query.",
        _TRY,
    ),
    "serve": Verb("pipeline.commands.serve", "Serve the whole file service, pretended, on 127.0.0.1.", _TRY),
}
"""Every verb, in the order of the help. A new verb is one line here."""


_RARELY: Final = (20_000, 20, 20)
"""When to look for cycles: seldom. Imports make none, and a crawl thousands of objects a second, hardly any in one."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with one of the codes in `Exit`."""
    _fill_closed()
    gc.set_threshold(*_RARELY)
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _fill_closed() -> None:
    """Let what is written to a closed stdout or stderr vanish, and let no file of ours get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        mode = os.O_RDONLY if name == "stdin" else os.O_WRONLY
        nowhere = os.open(os.devnull, mode)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
        os.set_inheritable(number, True)  # noqa: FBT003
        setattr(sys, name, open(number, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115


def _run(arguments: list[str]) -> int:
    try:
        _refuse_token(arguments)
        code = get_command(app).main(args=arguments, prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has left, as `head` does. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the only catch-all: no traceback reaches the screen
        return _tell(_unwrapped(error), arguments)
    if code == Exit.INTERRUPTED and not isinstance(code, Exit):  # typer turns Ctrl-C into this
        return _tell(Interrupted("Interrupted."), arguments)
    return int(code or Exit.DONE)


# Verbs, imported when called


class _Verbs(TyperGroup):
    """Lists the verbs from the table, and imports one only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """A stand-in with the verb's line, for the help and the shell's completion."""
        verb = VERBS.get(cmd_name)
        return verb and _command(cmd_name, _stand_in, verb)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb itself, its module imported."""
        name, *rest = args
        verb = VERBS.get(name)
        if verb is not None:
            return name, _command(name, _front(importlib.import_module(verb.module).run), verb), rest
        if not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, VERBS, n=1)
            ctx.fail(f"No such command: {name}." + (f" Did you mean {near[0]}?" if near else ""))
        return None, None, rest


app = typer.Typer(
    name=NAME, cls=_Verbs, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
)


def _stand_in() -> None:
    """Nothing: the verb's module is not imported for the help of all verbs."""


def _command(name: str, function: Callable[..., Any], verb: Verb) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    text = verb.help if function is _stand_in else None
    single.command(name, help=text, rich_help_panel=verb.panel)(function)
    return get_command(single)


_CONTEXT: Final = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
_FLAGS: Final = tuple(
    parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in inspect.signature(Flags).parameters.values()
)


def _front(run: Callable[..., Exit | None]) -> Callable[..., Exit | None]:
    """`run` as typer sees it: its own options and the flags of every verb, but not the call, its first argument."""
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(run).parameters.values()
    ]
    takes_call = bool(own) and own[0].name == "call"

    def front(context: typer.Context, **options: Any) -> Exit | None:
        given = Flags(**{field.name: options.pop(field.name) for field in fields(Flags)})
        call = importlib.import_module("pipeline.call").begin(given.over(context.obj))
        return run(call, **options) if takes_call else run(**options)

    front.__doc__ = _with_joined_lines(run.__doc__ or "")
    front.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_CONTEXT, *(own[1:] if takes_call else own), *_FLAGS]
    )
    return front


def _with_joined_lines(text: str) -> str:
    """The paragraphs, each on one line: the help breaks them where the terminal ends. Lists keep their lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    is_list = [any(line.startswith((" ", "- ", "* ")) for line in each.splitlines()) for each in paragraphs]
    return "\n\n".join(
        each if kept else " ".join(each.splitlines()) for each, kept in zip(paragraphs, is_list, strict=True)
    )


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it
    if asked:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - its callback does it all
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
    **flags: Any,
) -> None:
    """A complete, queryable, provable copy of everything a file and scan service holds."""
    context.obj = Flags(**flags)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Exit.USAGE)


_own = list(inspect.signature(_root).parameters.values())[:-1]
_root.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in _own), *_FLAGS]
)
app.callback(invoke_without_command=True)(_root)


# Failures


def _refuse_token(arguments: list[str]) -> None:
    for token in tokens_around():
        if len(token) >= 4 and any(token in argument for argument in arguments):
            raise _TOKEN_SHOWN


_TOKEN_SHOWN: Final = SettingsError(
    "The token may not stand on the command line: others can list it.",
    remedy="Put it into SCANLAKE_TOKEN, or into a file of mode 600 that --token-file names.",
)


def _unwrapped(error: BaseException) -> BaseException:
    """Of errors that came together (a task group's), the first that is ours, else the first."""
    while isinstance(error, BaseExceptionGroup):
        ours = error.subgroup(ScanlakeError)
        error = (ours or error).exceptions[0]
    # What could not be tidied up after the machine said no hides what it said.
    hidden = error
    while isinstance(hidden, RuntimeError) and hidden.__context__ is not None:
        hidden = hidden.__context__
    return hidden if isinstance(hidden, OSError) else error


def _tell(error: BaseException, arguments: Sequence[str]) -> int:
    """One line on stderr, one object on stdout with `--json`, the traceback in the log file. Returns the code."""
    logs = importlib.import_module("pipeline.logs")
    if not isinstance(error, TyperException):
        logs.keep_traceback(error)
    failure = _failure(error, arguments)
    message, remedy = logs.one_line(failure.message), logs.one_line(failure.remedy)
    if not message.endswith((".", "?", "!")):
        message += "."
    told = {"error": message, "remedy": remedy, "exit_code": failure.exit_code}
    if "--json" in arguments:
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    if os.environ.get("SCANLAKE_DEBUG"):
        sys.stderr.write(logs.traceback_of(error))
    if "--log-json" in arguments:
        sys.stderr.write(logs.closing_line(told) + "\n")
    else:
        sys.stderr.write(f"{NAME}: {message} {remedy}".rstrip() + "\n")
    return failure.exit_code


def _failure(error: BaseException, arguments: Sequence[str]) -> ScanlakeError:
    match error:
        case ScanlakeError():
            return error
        case TyperException():
            return _usage(error)
        case KeyboardInterrupt() | typer.Abort():
            return Interrupted("Interrupted.")
        case OSError() if error.errno in _OF_STORAGE:
            return StorageError.of(error.filename if isinstance(error.filename, str) else None, error.errno)
        case _:
            report = importlib.import_module("pipeline.bugs").write_report(error, arguments, list(VERBS))
            return _Bug(error, report)


_OF_STORAGE: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        *(errno.EMFILE, errno.ENFILE, errno.ESTALE),
    }
)


def _usage(error: TyperException) -> SettingsError:
    if getattr(error, "option_name", None) == "--token":
        return _TOKEN_SHOWN
    near = getattr(error, "possibilities", None)
    message = getattr(error, "message", "") if near else error.format_message()
    hint = f" Did you mean {near[0]}?" if near else ""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else NAME
    return SettingsError(
        message.rstrip(".?") + ("?" if message.endswith("?") else ".") + hint, remedy=f"See `{path} --help`."
    )


class _Bug(ScanlakeError):
    """Something nobody foresaw. Its text may hold data, so only its kind and its place are shown."""

    exit_code = Exit.BUG

    def __init__(self, error: BaseException, report: Path | None) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        remedy = f"Please report it with {report}, which holds none of your data."
        if report is None:
            remedy = "Run it again with --log-file FILE, and report it with the traceback found there."
        super().__init__(f"A bug in {NAME}: {type(error).__name__}{place}.", remedy=remedy)
