"""Settings: where they come from, which of them wins, and what is said when one is wrong."""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipeline.errors import SettingsError
from pipeline.settings.layers import load
from pipeline.settings.settings import SETTINGS, load_token, render_settings_file, require_base_url, validate_token
from schemas.includes import INCLUDES
from tests.forkserver import run_command
from tests.processes import NOBODY, why_not_as_nobody
from tests.rows import every


def write(text: str, name: str = "scanlake.toml") -> Path:
    """A settings file in the test's folder."""
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def test_later_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag wins over the environment, the environment over the file, the file over the default; --config over all."""
    write("max_concurrency = 2\nkeep_daily = 2\nkeep_snapshots = 2")
    monkeypatch.setenv("SCANLAKE_MAX_CONCURRENCY", "3")
    monkeypatch.setenv("SCANLAKE_KEEP_DAILY", "3")
    settings = load(None, {"max_concurrency": 4, "lang": None})
    assert (settings.max_concurrency, settings.keep_daily, settings.keep_snapshots) == (4, 3, 2)
    assert settings.lookback_seconds == 600
    monkeypatch.setenv("SCANLAKE_CONFIG", str(write("keep_snapshots = 5", "five.toml")))
    assert load(None, {}).keep_snapshots == 5
    assert load(write("keep_snapshots = 4", "four.toml"), {}).keep_snapshots == 4


def test_the_lake_has_one_path_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a settings file starts there, one with .. names no folder needlessly, and the lake's own link stays."""
    for name in ("home", "elsewhere", "data", "etc"):
        (tmp_path / name).mkdir()
    assert load(write('lake = "data"', "etc/scanlake.toml"), {}).lake == Path("etc/data")
    assert load(None, {}).lake == Path("lake")
    (tmp_path / "home" / "lake").symlink_to(tmp_path / "data")
    write('base_url = "https://service.example"', "home/scanlake.toml")
    monkeypatch.chdir(tmp_path / "elsewhere")
    expected = tmp_path / "home" / "lake"
    assert load(Path("../home/scanlake.toml"), {}).lake == expected
    assert load(None, {"lake": "../home/lake"}).lake == expected
    config = write("[sources.north]\nbase_url = 'https://north.example'\n", "../home/sources.toml")
    monkeypatch.setenv("SCANLAKE_CONFIG", str(config))
    assert load(None, {}).lake == expected / "north"


def test_a_byte_order_mark_is_no_text(canary: str) -> None:
    """An editor's mark at the start of the settings file and of the token file is left out."""
    settings = load(write('\ufefftoken_file = "token"'), {})
    write(f"\ufeff{canary}\n", "token")
    assert load_token(settings) == canary


@pytest.mark.skipif(bool(why_not_as_nobody()), reason=why_not_as_nobody())
def test_a_settings_file_of_others_is_not_obeyed(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was found is of this user or root, and only they can write it; one that is named may be of others.

    A group with the user's name is private. A user takes the file of root.
    """
    own = pwd.getpwuid(os.getuid())
    monkeypatch.chdir(open_folder)
    path = write("keep_snapshots = 7")
    for uid, gid, mode, says in (
        (own.pw_uid, own.pw_gid, 0o644, None),
        (own.pw_uid, own.pw_gid, 0o664, None),
        (own.pw_uid, NOBODY, 0o644, None),
        (own.pw_uid, NOBODY, 0o664, "scanlake.toml of root can be changed by other users (mode 664)."),
        (own.pw_uid, own.pw_gid, 0o646, "scanlake.toml of root can be changed by other users (mode 646)."),
        (NOBODY, NOBODY, 0o600, "scanlake.toml belongs to nobody, not to you."),
        (54_321, 54_321, 0o644, "scanlake.toml belongs to 54321, not to you."),
    ):
        os.chown(path, uid, gid)
        path.chmod(mode)
        if says is None:
            assert load(None, {}).keep_snapshots == 7
        else:
            with pytest.raises(SettingsError, match=re.escape(says)) as caught:
                load(None, {})
            assert caught.value.hint == "If you trust it, use --config scanlake.toml."
        assert load(path, {}).keep_snapshots == 7
    os.chown(path, 0, 0)
    shown = run_command(["settings"], cwd=open_folder, env=dict(os.environ), user=NOBODY)
    assert re.search(rb"keep_snapshots +7 ", shown.out), shown.err
    path.rename("own.toml")
    path.symlink_to("own.toml")
    os.lchown(path, NOBODY, NOBODY)
    with pytest.raises(SettingsError, match="belongs to nobody, not to you"):
        load(None, {})


def test_includes_stand_in_the_interfaces_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Includes may be given in any order, as text or as a list, and come out in one."""
    for given, expected in (("forms, uploads", ("uploads", "forms")), ("all", INCLUDES), ("none", ())):
        monkeypatch.setenv("SCANLAKE_INCLUDES", given)
        assert load(None, {}).includes == expected


@every(
    ("text", "says"),
    [
        ("concurency = 3", r"unknown setting concurency \(scanlake.toml\), did you mean max_concurrency\?"),
        ('max_concurrency = "many"', r"max_concurrency \(scanlake.toml\) must be a whole number from 1 to 512"),
        ("max_concurrency = 1000000", "from 1 to 512"),
        ("max_concurrency = 0", "from 1 to 512"),
        ("lookback_seconds = -1", "a number from 0 to 2,592,000"),
        ("lookback_seconds = nan", "a number from 0 to 2,592,000"),
        ('fetch_details = "sometimes"', "'changed', 'always' or 'never'"),
        ('lang = "en\\n"', "a language such as en or pt-BR"),
        ('iceberg_namespace = "lake\\n"', "a name of small letters"),
        ('publish_after_sync = true\npublish_to = "ftp://x"', r"^publish_to \(scanlake.toml\) must be a URL [^;]*$"),
        ('includes = ["geocoding"]', "geocoding requires uploads; add uploads"),
        ('includes = ["images"]', "includes .* must be a list of 'uploads'"),
        ('token = "abc"', "the token must not be in a settings file"),
        ("[sync]\nx = 1", "unknown setting sync"),
        ("a b c", r"not valid TOML \(at line 1, column 3\)"),
        ('notify_url = "http://chat.example/hook"', "must be https"),
        ('notify_url = "ftp://chat.example/"', "must look like https://"),
        # An address is refused with its reason, which does not show it: it may hold a secret.
        ('base_url = "service.internal"', "must look like https://"),
        ('base_url = "http://127.0.0.1.service.example"', "must be https"),
        ('base_url = "https://user:pass@service.example"', "user or password"),
        ('base_url = "https://service.example/?token=abc"', "query"),
        ('base_url = "https://service.example/a b"', "white space"),
        ('base_url = "https://[::1"', "not a URL"),
        ('base_url = "https://service.example:99999"', "not a URL"),
    ],
)
def test_a_wrong_file_is_one_clear_line(text: str, says: str) -> None:
    """What is wrong in the file is named with the file and with what would be right."""
    write(text)
    with pytest.raises(SettingsError, match=f"(?i){says}") as caught:
        load(None, {})
    assert "\n" not in caught.value.message
    assert caught.value.hint
    value = text.partition('"')[2].rstrip('"')
    assert not value or value not in caught.value.message


def test_every_problem_is_named_with_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is wrong is said at once, each with its origin."""
    write("keep_daily = -1")
    monkeypatch.setenv("SCANLAKE_KEEP_SNAPSHOTS", "none")
    with pytest.raises(SettingsError) as caught:
        load(None, {"max_concurrency": 9999})
    for origin in ("keep_daily (scanlake.toml)", "SCANLAKE_KEEP_SNAPSHOTS (environment)", "--set max_concurrency"):
        assert origin in caught.value.message


def test_an_unknown_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped SCANLAKE_ variable is refused; ours that are no settings are not."""
    monkeypatch.setenv("SCANLAKE_DEBUG", "1")
    load(None, {})
    monkeypatch.setenv("SCANLAKE_CONCURENCY", "3")
    with pytest.raises(SettingsError, match="did you mean SCANLAKE_MAX_CONCURRENCY"):
        load(None, {})


def test_a_right_address_loses_its_slash() -> None:
    """Https anywhere and http on this machine are taken, without a trailing slash; none is said where one is needed."""
    for url in ("https://service.example/", "http://127.0.0.1:80", "http://[::1]:8/", "http://localhost"):
        assert require_base_url(load(None, {"base_url": url})) == url.rstrip("/")
    with pytest.raises(SettingsError, match="base_url is required"):
        require_base_url(load(None, {}))


def test_a_mistaken_token_is_refused_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was pasted wrongly is refused before the first request, unseen; none names both ways to give one."""
    for token, says in (
        *((token, "white space") for token in (" ", "abc def", "abc\n", " abc")),
        *((token, "quotation mark") for token in ("'abc='", '"abc="')),
        ("Bearer abc=", "Bearer"),
        ("bearer bearer abc=", "Bearer"),
        ("abc\u00e4", "a token cannot have"),
        ("", "No token is set"),
    ):
        monkeypatch.setenv("SCANLAKE_TOKEN", token)
        settings = load(None, {})
        with pytest.raises(SettingsError, match=says) as caught:
            load_token(settings)
        assert "abc" not in f"{caught.value.message} {caught.value.hint} {settings!r}"
    assert "SCANLAKE_TOKEN" in caught.value.hint
    assert "token_file" in caught.value.hint
    for token, says in (("", "token is empty"), ("abc\0", "token holds characters that a token cannot have")):
        with pytest.raises(SettingsError, match=says):  # no variable can hold them, but a file
            validate_token(token, "token")


def test_the_token_file_is_read(canary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token file that all can read is used with a warning that does not show it; that of a flag is the later word."""
    path = write(canary + "\n", "token")
    for mode, warned in ((0o600, []), (0o644, ["token_file.open_to_all"]), (0o602, ["token_file.open_to_all"])):
        path.chmod(mode)
        with capture_logs() as events:
            assert load_token(load(None, {"token_file": path})) == canary
        assert [event["event"] for event in events] == warned
        assert canary not in str(events)
    monkeypatch.setenv("SCANLAKE_TOKEN", "of-the-environment")
    write('token_file = "token"')
    assert load_token(load(None, {})) == "of-the-environment"
    assert load_token(load(None, {"token_file": path})) == canary


def test_secrets_are_masked(canary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither repr nor str of the settings shows the token, and settings are a value."""
    monkeypatch.setenv("SCANLAKE_TOKEN", canary)
    settings = load(None, {})
    assert canary not in f"{settings!r} {settings}"
    with pytest.raises(AttributeError, match="immutable"):
        settings.keep_snapshots = 3  # type: ignore[misc]


def test_the_example_file_lists_every_setting_with_its_default(pytestconfig: pytest.Config) -> None:
    """configs/scanlake.toml documents each setting, as it stands is a valid file, and its examples load."""
    example = pytestconfig.rootpath / "configs" / "scanlake.toml"
    text = example.read_text(encoding="utf-8")
    assert text == render_settings_file({}), "run `make docs`"
    assert tomllib.loads(text) == {}
    examples = [line[1:] for line in text.splitlines() if line.startswith("#") and line[1:2].isalpha()]
    shown: dict[str, Any] = tomllib.loads("\n".join(examples))
    assert set(shown) == set(SETTINGS) - {"token"}
    assert all(setting.description for setting in SETTINGS.values())
    loaded, default = load(write("\n".join(examples), "shown.toml"), {}), load(None, {})
    for name in shown:
        if getattr(default, name) is not None:
            assert getattr(loaded, name) == getattr(default, name), name
