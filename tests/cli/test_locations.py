"""Places: whatever names one, on the command line or in a setting, is spelled by one rule, or refused before all else.

The parameters are those of the commands as they are, so a new one is covered by itself.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from typer.exceptions import TyperException

from pipeline.cli.app import COMMANDS
from pipeline.cli.context import CommandContext
from pipeline.cli.options import GlobalOptions, Location
from pipeline.errors import SettingsError
from pipeline.settings.layers import load
from pipeline.settings.locations import encode_path, parse_folder, parse_location, parse_path, parse_store_url
from pipeline.settings.settings import PATH_SETTINGS, SECRET_SETTINGS, SETTINGS
from tests.rows import every
from tools.docs.generate import load_commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Answer, Scanlake

_LITERALLY: Final = "begin with ./"
_URLS: Final = "s3://bucket/prefix, gs://, az:// or file:///folder"
NO_PATHS: Final = {  # what other tools, URLs and shells spell, and the right spelling that the answer names
    **dict.fromkeys(("s3:bucket/x", "b2:bucket", "gs:bucket", "az:container/x", "s3:https://host/bucket"), _LITERALLY),
    **dict.fromkeys(("sftp:user@host:/x", "user@host:/backup", "host:backup", "host::module/x"), _LITERALLY),
    **dict.fromkeys(("rclone:remote:x", "remote:x", "smb://nas/share", r"\\nas\share", r"C:\lake", "C:/"), _LITERALLY),
    **dict.fromkeys(("file:/abs/x", "file:x", "FILE:///x", "File://x", "file://", "S3://bucket/x"), "/folder"),
    **dict.fromkeys(("s3://bucket/x", "gs://bucket", "az://container/x", "file:///abs/x"), "/folder"),
    **dict.fromkeys(("$HOME/lake", "${HOME}/lake", "${HOME:-/root}", "$(pwd)/lake"), _LITERALLY),
    **dict.fromkeys(("~nobody-here/lake", "~nobody-here"), _LITERALLY),
    **dict.fromkeys(("", " "), "give a path"),
    **dict.fromkeys(("sftp:user:s3cr3t@host:/x", "s3://key:s3cr3t@bucket/x", "https://h/x?k=s3cr3t"), _LITERALLY),
}
_NO_STORES: Final = (
    *(
        "s3:bucket/x",
        "S3://bucket/x",
        "b2:bucket",
        "b2://bucket",
        "sftp://host/x",
        "smb://nas/share",
        "s3://",
        "gs:///x",
    ),
    *(
        "file:/abs/x",
        "file:x",
        "FILE:///x",
        "file://",
        "file:///",
        "file://host/x",
        "FILE://x",
        "s3a://bucket",
        "s3:///x",
    ),
)
NO_URLS: Final = {
    **dict.fromkeys((*_NO_STORES, "folder", "/folder", "~/x", "$HOME/x", ""), _URLS),
    **dict.fromkeys(("s3://bucket/a b", "s3://bucket/a%41", "file:///a'b"), "must not have the character"),
    **dict.fromkeys(("s3://key:s3cr3t@bucket/x", "s3://bucket/x?t=s3cr3t", "az://c/x#s3cr3t"), "credentials"),
}
NO_PLACES: Final = {
    **{text: right for text, right in NO_URLS.items() if "://" in text},
    **{text: right for text, right in NO_PATHS.items() if "://" not in text},
}
PATHS: Final = (
    "~/x",
    "~",
    "./~",
    "./a:b",
    "./$HOME/x",
    "./s3:bucket/x",
    "a/b:c",
    "a~b",
    "/abs/a:b",
    "x",
    ".",
    "-",
    "./-",
)
_REFUSED: Final = {
    parse_path: NO_PATHS,
    parse_store_url: NO_URLS,
    parse_location: NO_PLACES,
    parse_folder: NO_PATHS | {"all.pdf": "looks like a file name"},
}
_PLACE_WORDS: Final = ("PATH", "FILE", "DIR", "FOLDER", "URL", "KEY", "LAKE")
_SHARE: Final = 5
_NEED_NO_LAKE: Final = {"demo", "emulator", "init"}


class Parameter(NamedTuple):
    """A parameter of a command, and the words before its value and after it."""

    command: str
    name: str
    type: Any
    metavar: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    takes_value: bool
    complete: tuple[str, ...]
    """The command with what it requires."""


def _list_parameters() -> Iterator[Parameter]:
    """Yield the parameters of every command, with the global options."""
    for command, params in ((name, command.params) for name, command in load_commands().items()):
        complete = command.split()
        for param in (param for param in params if param.required):
            complete += ["1"] if param.param_type_name == "argument" else [param.opts[0], "1"]
        for number, param in enumerate(params):
            is_argument = param.param_type_name == "argument"
            before, after = command.split(), list[str]()
            for index, other in enumerate(params):
                if other.param_type_name == "argument" and (other.required or index < number) and other is not param:
                    (after if is_argument and index > number else before).append("1")
                elif other.param_type_name == "option" and other.required and other is not param:
                    before += [other.opts[0], "1"]
            before += [] if is_argument else [param.opts[0]]
            takes_value = is_argument or not (param.is_flag or param.count)
            metavar = str(param.metavar or "")
            yield Parameter(
                command, param.name, param.type, metavar, tuple(before), tuple(after), takes_value, tuple(complete)
            )


ALL: Final = tuple(_list_parameters())
PARAMETERS: Final = tuple(
    each for each in ALL if each.name not in GlobalOptions.__struct_fields__ or each.command == "status"
)
PLACES: Final = tuple(each for each in PARAMETERS if isinstance(each.type, Location))


class Service:
    """A port of this machine that answers nothing, and knows whether it was called."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0)
        port = self._socket.getsockname()[1]
        self.variables = {"SCANLAKE_BASE_URL": f"http://127.0.0.1:{port}", "SCANLAKE_TOKEN": "a-token"}

    def was_called(self) -> bool:
        """Return whether somebody has connected since the last question."""
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the port."""
        self._socket.close()


@pytest.fixture
def service() -> Iterator[Service]:
    """A service that must not be called."""
    with closing(Service()) as made:
        yield made


def everything(tmp_path: Path) -> list[str]:
    """Return every file and folder beside and below the current folder, and in the home folder."""
    return sorted(str(path) for path in tmp_path.parent.rglob(f"{tmp_path.name}*/**/*"))


def check_refused(answer: Answer, right: str, service: Service, subject: str) -> None:
    """Exit code 2, one line with the parameter and the right spelling, no secret, no call."""
    assert answer.code == 2, answer
    [line] = answer.lines
    assert right in line, line
    assert subject in line, line
    assert "s3cr3t" not in answer.out + line
    assert not service.was_called()


def test_every_place_is_found() -> None:
    """What the help calls a path, a folder, a file or a URL is a place, in every command, and there are many."""
    named = {each for each in PARAMETERS if set(_PLACE_WORDS) & set(each.metavar.split("|"))}
    assert named == set(PLACES)
    names = {each.command for each in PLACES}
    assert names >= {"backup", "restore", "publish", "check", "report", "export", "images export", "query", "serve"}


@every("place", PLACES)
def test_other_spellings_are_refused(place: Parameter, tmp_path: Path, main: Scanlake, service: Service) -> None:
    """Every place of every command refuses what it cannot mean, names what is right, and does nothing."""
    before = everything(tmp_path)
    refused = _REFUSED[place.type.parse]
    for text, right in refused.items():
        with pytest.raises(TyperException, match=re.escape(right)):
            place.type.convert(text, None, None)
    for text, right in list(refused.items())[PLACES.index(place) % _SHARE :: _SHARE]:  # together they run all
        answer = main(*place.before, text, *place.after, **service.variables)
        option = place.before[-1]
        check_refused(answer, right, service, option if option.startswith("-") else place.metavar)
        assert everything(tmp_path) == before, text
    check_refused(main("--lake", "s3:bucket/x", "status", **service.variables), _LITERALLY, service, "--lake")


@every("place", PLACES)
def test_what_a_place_means(place: Parameter, tmp_path: Path) -> None:
    """`~` is the home folder, `./` takes a name literally, and a child process gets a spelling of the same path."""
    home = Path(os.environ["HOME"])
    parse = place.type.parse
    if parse is parse_store_url:
        for url in ("s3://bucket/x", "gs://bucket", "az://container/a/b", "file:///abs/x"):
            assert parse(f"{url}/") == url
        return
    for text in PATHS:
        expected = home / text[2:] if text.startswith("~") else Path(text)
        found = place.type.convert(text, None, None)
        assert found == (str(tmp_path / expected) if parse is parse_location else expected)
        assert parse_path(encode_path(expected)) == expected
    if parse is parse_location:
        assert parse("./a://b") == f"{tmp_path}/a:/b"
        assert [parse(url) for url in ("s3://bucket/x/", "file:///abs")] == ["s3://bucket/x", "file:///abs"]


_URL_SETTINGS: Final = {name for name, setting in SETTINGS.items() if "://" in str(setting.rule.example)}
_PLACE_SETTINGS: Final = sorted(PATH_SETTINGS | _URL_SETTINGS)


@every("name", _PLACE_SETTINGS)
def test_settings_refuse_other_spellings(name: str, tmp_path: Path, main: Scanlake, service: Service) -> None:
    """Every setting that is a path or a URL refuses them in each layer: file, environment, --set and option."""
    is_store = SETTINGS[name].rule.check is parse_store_url
    refused = NO_PATHS if name in PATH_SETTINGS else NO_URLS if is_store else dict.fromkeys(_NO_STORES, "must ")
    assert {"lake", "token_file", "log_file", "metrics_file"} == PATH_SETTINGS
    assert {"publish_to", "iceberg_location", "base_url", "proxy", "notify_url"} == _URL_SETTINGS
    file = tmp_path / "other.toml"
    for text, right in refused.items():
        escaped = text.replace("\\", "\\\\")
        file.write_text(f'{name} = "{escaped}"\n', encoding="utf-8")
        before = everything(tmp_path)
        layers: list[tuple[tuple[str, ...], dict[str, str]]] = [(("--config", "other.toml"), {})]
        layers += [((), {f"SCANLAKE_{name.upper()}": text})] if text else []  # an empty variable is none
        layers += [] if name in SECRET_SETTINGS else [(("--set", f"{name}={text}"), {})]
        for options, variables in layers:
            answer = main("settings", *options, **{"SCANLAKE_TOKEN": "a-token", **variables})
            is_option = options[:1] == ("--set",) and name in {"lake", "log_file"}
            subject = f"--{name.replace('_', '-')}" if is_option else name.upper() if variables else name
            check_refused(answer, right, service, subject)
            assert everything(tmp_path) == before, text


def test_a_path_is_the_same_in_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder in the file, the environment, --set and the option; ./ takes a name literally in each."""
    home = Path(os.environ["HOME"])
    for text in (text for text in PATHS if text != "-"):
        expected = home / text[2:] if text.startswith("~") else Path(text)
        Path("scanlake.toml").write_text(f'lake = "{text}"\nlog_file = "{text}"\n', encoding="utf-8")
        assert (load(None, {}).lake, load(None, {}).log_file) == (expected, expected)
        Path("scanlake.toml").unlink()
        assert load(None, CommandContext(set_values=[f"lake={text}"]).given_settings).lake == expected
        with monkeypatch.context() as around:
            around.setenv("SCANLAKE_LAKE", text)
            assert load(None, {}).lake == expected
    monkeypatch.setenv("SCANLAKE_CONFIG", "~/my.toml")
    (home / "my.toml").write_text("keep_snapshots = 7", encoding="utf-8")
    assert load(None, {}).keep_snapshots == 7
    monkeypatch.setenv("SCANLAKE_CONFIG", "s3:bucket/my.toml")
    with pytest.raises(SettingsError, match="SCANLAKE_CONFIG must be a path on this machine"):
        load(None, {})


def test_a_wrong_lake_stops_every_command(tmp_path: Path, main: Scanlake, service: Service) -> None:
    """Every command that uses the lake refuses the variable before it does anything."""
    lines = {each.command: each.complete for each in ALL if each.command not in _NEED_NO_LAKE}
    assert lines.keys() == COMMANDS.keys() - _NEED_NO_LAKE
    for words in lines.values():
        before = everything(tmp_path)
        for text in ("s3:bucket/x", "$HOME/lake"):
            answer = main(*words, **service.variables, SCANLAKE_LAKE=text)
            assert answer.code == 2, (words, answer)
            told = answer.out + answer.err
            assert "SCANLAKE_LAKE (environment) " in told or "A rollback needs the number" in told, (words, answer)
            assert not service.was_called()
            assert everything(tmp_path) == before


def test_a_folder_with_the_name_of_another_place_is_reached(tmp_path: Path, main: Scanlake, lake: Path) -> None:
    """`./` before such a name leads to the folder, for a child process, too."""
    assert main("--lake", f"./{lake.name}", "export", "./a:b").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a:b", lake.name]
    lake.rename(tmp_path / "s3:lake")
    assert main("--lake", "./s3:lake", "query", "SELECT 1", "-o", "./~.csv").code == 0
    assert (tmp_path / "~.csv").read_text() == '"1"\n1\n'


# Bytes that are no text


@every("parameter", [each for each in PARAMETERS if each.takes_value])
def test_bytes_are_refused(parameter: Parameter, tmp_path: Path, main: Scanlake, service: Service) -> None:
    """No parameter of any command takes bytes that are no UTF-8 text."""
    before = everything(tmp_path)
    answer = main(*parameter.before, os.fsdecode(b"l\xffke"), *parameter.after, **service.variables)
    check_refused(answer, "is not UTF-8 text", service, f"Argument {len(parameter.before) + 1}")
    assert everything(tmp_path) == before


def test_bytes_of_the_environment_are_refused(tmp_path: Path, service: Service) -> None:
    """Nor does a variable, nor the current folder: a process ends with 2 before it does anything."""
    strange = tmp_path / os.fsdecode(b"l\xffke")
    strange.mkdir()
    before = everything(tmp_path)
    variables = [*(f"SCANLAKE_{name.upper()}" for name in SETTINGS), "SCANLAKE_CONFIG", "SCANLAKE_SOURCE"]
    variables += ["SCANLAKE_TOKEN_NORTH", "PYICEBERG_CATALOG__SCANLAKE__URI", "HOME", "TMPDIR", "LOGNAME", "USER"]
    command = (sys.executable, "-m", "pipeline", "sync")
    cases = [(name, tmp_path, {**service.variables, name: os.fsdecode(b"l\xffke")}) for name in variables]
    sample = [*cases[:1], *cases[-1:], ("The current folder", strange, service.variables)]
    for subject, folder, environment in sample:
        finished = subprocess.run(
            command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        assert (finished.returncode, finished.stderr.count("\n")) == (2, 1), finished
        assert f"{subject} is not UTF-8 text." in finished.stderr
    assert everything(tmp_path) == before
    assert not service.was_called()


@every(
    "name",
    [*(f"SCANLAKE_{name.upper()}" for name in SETTINGS), "SCANLAKE_CONFIG", "SCANLAKE_SOURCE", "LOGNAME", "TMPDIR"],
)
def test_no_variable_takes_bytes(name: str, tmp_path: Path, main: Scanlake, service: Service) -> None:
    """Every variable of scanlake, and those that become a path or a name, are refused by their name."""
    before = everything(tmp_path)
    answer = main("sync", **{**service.variables, name: os.fsdecode(b"l\xffke")})
    check_refused(answer, f"{name} is not UTF-8 text.", service, name)
    assert everything(tmp_path) == before
