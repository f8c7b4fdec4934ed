"""The files in configs/ that start scanlake: what they call and set exists, and systemd takes its units."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from typer.main import get_command

from pipeline.cli.app import app
from pipeline.settings.layers import NON_SETTING_VARIABLES, load, source_names
from pipeline.settings.settings import SETTINGS
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGS: Final = Path(__file__).resolve().parents[2] / "configs"
DOCS: Final = CONFIGS.with_name("docs")
FILES: Final = [
    path
    for folder in ("systemd", "kubernetes", "cron")
    for path in sorted((CONFIGS / folder).iterdir())
    if path.is_file()
]
HARDENED: Final = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ReadWritePaths": "/var/lib/scanlake",
    "CapabilityBoundingSet": "",
    "LoadCredential": "token:/etc/scanlake/token",
}


def commands_of(text: str) -> list[list[str]]:
    """Every call of scanlake in a file, without the program's name: in units, in lists of YAML, in lines of cron."""
    found = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        for part in re.findall(r"command: (\[.*\])", line):
            words = json.loads(part)
            found.append(words if words[0] != "sh" else shlex.split(words[2].partition(" || ")[0]))
        if line.startswith("ExecStart=") or re.match(r"(\S+ ){5}scanlake /opt/", line):
            found.append(shlex.split(line[line.index("/opt/") :]))
    assert all(Path(words[0]).name == "scanlake" for words in found)
    return [words[1:] for words in found]


def judge(arguments: list[str]) -> Any:
    """What the real command line makes of a call, without doing it; raises for what it does not know."""
    group: Any = get_command(app)
    context = group.make_context("scanlake", arguments)
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    return command.make_context(name, rest, parent=context).params


def test_every_call_is_understood() -> None:
    """Each call in them has a verb and options that the command line has; an option that is gone is noticed."""
    calls = {path.name: commands_of(path.read_text(encoding="utf-8")) for path in FILES}
    verbs = {name: [call[0] for call in found] for name, found in calls.items() if found}
    assert verbs == {
        "scanlake": ["sync", "backup", "check"],
        "scanlake.service": ["sync"],
        "scanlake-backup.service": ["backup"],
        "scanlake-check.service": ["check"],
        "cronjob.yaml": ["sync"],
        "maintenance.yaml": ["backup", "check"],
    }
    assert all(judge(call) for found in calls.values() for call in found)
    with pytest.raises(Exception, match="No such option"):
        judge(["sync", "--evry", "15m"])


@every("path", FILES)
def test_every_setting_exists(path: Path) -> None:
    """Each variable of ours that they set or name is a setting; none holds a token."""
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"SCANLAKE_[A-Z_]+", text)) - NON_SETTING_VARIABLES
    assert {name.removeprefix("SCANLAKE_").lower() for name in named} <= set(SETTINGS)
    assert not re.search(r"SCANLAKE_TOKEN\b(=|, value)", text)


def read_unit(name: str) -> dict[str, list[str]]:
    """The values of each directive of a unit."""
    found: dict[str, list[str]] = {}
    for line in (CONFIGS / "systemd" / name).read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            found.setdefault(line.partition("=")[0], []).append(line.partition("=")[2])
    return found


def test_the_units_are_hardened() -> None:
    """The services give up what they do not need, get the token as a credential, and have time for a last commit."""
    sync = read_unit("scanlake.service")
    assert {key: sync.get(key) for key in HARDENED} == {key: [value] for key, value in HARDENED.items()}
    assert int(sync["TimeoutStopSec"][0]) > 10
    assert "XDG_STATE_HOME=%S" in sync["Environment"], "its home is protected, and each failure would be sent"
    backups = " /var/backups/scanlake"
    own = {"Description", "ExecStart"}
    for name, place in (("scanlake-check.service", ""), ("scanlake-backup.service", backups)):
        expected = sync | {key: [sync[key][0] + place] for key in ("ReadWritePaths", "RequiresMountsFor")}
        assert {key: value for key, value in read_unit(name).items() if key not in own} == {
            key: value for key, value in expected.items() if key not in own
        }


def test_another_user_can_read_the_metrics_of_the_units() -> None:
    """The folder that docs/operations.md names for metrics is of each unit, and anybody may read it."""
    [documented] = set(re.findall(r'metrics_file = "(\S+)"', (DOCS / "operations.md").read_text(encoding="utf-8")))
    for name in ("scanlake.service", "scanlake-check.service", "scanlake-backup.service"):
        unit = read_unit(name)
        assert Path(documented).parent == Path("/var/cache", unit["CacheDirectory"][0])
        assert unit["CacheDirectoryMode"] == ["0755"]


def test_backup_and_check_are_between_two_syncs() -> None:
    """No schedule starts a backup or a check in the minute of a sync, which would keep it from the lake."""
    found = re.findall(
        r'(?m)^(?:schedule: "|OnCalendar=|)((?:[*\d]\S* ){4}\S+|\*:0/15|(?:\w+ )?\d\d:\d\d)',
        "\n".join(re.sub(r"(?m)^ +", "", path.read_text(encoding="utf-8")) for path in FILES),
    )
    syncs = [each for each in found if "/15" in each]
    others = [each for each in found if "/15" not in each]
    assert (len(syncs), len(others)) == (3, 6), found
    minutes = [int(each.partition(" ")[0] if "*" in each else each[-2:]) for each in others]
    assert all(3 <= minute % 15 <= 12 for minute in minutes)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Systemd knows every directive and value in them."""
    for path in (CONFIGS / "systemd").iterdir():
        text = path.read_text(encoding="utf-8").replace("/opt/scanlake/bin/scanlake", sys.executable)
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    units = sorted(str(path) for path in tmp_path.iterdir())
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if str(tmp_path) in line] == []
    assert done.returncode == 0, done.stderr


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the pod templates of a Kubernetes object."""
    if isinstance(value, list):
        for each in value:
            yield from _pods(each)
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        else:
            for each in value.values():
                yield from _pods(each)


def test_metrics_are_where_prometheus_scrapes() -> None:
    """The jobs write their metrics where a pod of the same volume reads them, by whose port and notes it is scraped."""
    text = (CONFIGS / "kubernetes" / "cronjob.yaml").read_text(encoding="utf-8")
    job, reader = (pod for document in yaml.safe_load_all(text) for pod in _pods(document))
    [written] = re.findall(r'(?m)^ *metrics_file = "(.*)"', text)
    [container] = reader["spec"]["containers"]
    words = " ".join(container["args"])
    [folder] = re.findall(r"--collector.textfile.directory=(\S+)", words)
    [port] = re.findall(r"--web.listen-address=:(\d+)", words)
    assert str(Path(written).parent) == folder
    assert [str(each["containerPort"]) for each in container["ports"]] == [port]
    assert reader["metadata"]["annotations"] == {"prometheus.io/scrape": "true", "prometheus.io/port": port}
    for pod in (job, reader):
        [container] = pod["spec"]["containers"]
        assert [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "lake"] == ["/lake"]


def test_the_pods_are_hardened() -> None:
    """Pods run as nobody in particular, write nowhere but their volumes, and have limits; the token is a file."""
    names = ("cronjob.yaml", "maintenance.yaml")
    text = "\n---\n".join((CONFIGS / "kubernetes" / name).read_text(encoding="utf-8") for name in names)
    pods = [pod["spec"] for part in text.split("\n---\n") for pod in _pods(yaml.safe_load(part))]
    assert len(pods) == 4
    for pod in pods:
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["limits"]["memory"]
    for line in (
        "runAsNonRoot: true", "readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false",
        'capabilities: {drop: ["ALL"]}', "seccompProfile: {type: RuntimeDefault}", "enableServiceLinks: false",
        "defaultMode: 0440}", "limits: {memory:",
    ):  # fmt: skip
        assert line in text, line
    assert "\t" not in text


def test_a_cron_job_is_one_source(tmp_path: Path) -> None:
    """The source of the job is one of the settings file, and each has a lake, a token and metrics of its own."""
    text = (CONFIGS / "kubernetes" / "cronjob.yaml").read_text(encoding="utf-8")
    lines = text.splitlines()
    start = lines.index("  scanlake.toml: |") + 1
    path = tmp_path / "scanlake.toml"
    path.write_text("\n".join(line[4:] for line in lines[start : lines.index("---")]), encoding="utf-8")
    settings = {name: load(path, {}, source=name) for name in source_names(path)}
    assert [each.lake for each in settings.values()] == [Path("/lake/lake") / name for name in settings]
    assert len({each.token_file for each in settings.values()}) == len(settings) == 2
    files = [each.metrics_file for each in settings.values()]
    assert files == [Path(f"/lake/metrics/scanlake-{name}.prom") for name in settings]
    [arguments] = commands_of(text)
    assert arguments[arguments.index("--source") + 1] in settings
