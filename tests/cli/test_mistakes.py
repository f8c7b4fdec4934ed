"""What is typed wrongly: each mistake is exit code 2 and one line with what to do, before anything is asked or made."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from pipeline.settings.settings import SECRET_SETTINGS
from tests.cli.test_query_access import fingerprint
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake

SERVICE: Final = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}
OTHER_WORDS: Final = {  # what people know from other tools, by what it is here
    "sync": "pull,fetch,run,start,update,refresh,PULL,fetch --all",
    "init": "login,auth,setup,configure",
    "settings": "config,config set",
    "tables": "ls,list,schema,describe",
    "query": "sql,shell,sql 'SELECT 1'",
    "serve": "ui,web,open,dashboard",
    "status": "info,logs,stats",
    "changes": "diff",
    "export": "dump",
    "check": "doctor,test",
    "publish": "push",
    "rollback": "undo",
    "--help": "help,help sync",
    "--version": "version",
}
MISTAKES: Final = (  # the line as it is typed, with variables before it, and a part of the answer
    # Names of commands and options
    ("satus", "scanlake: No such command: satus. Did you mean status? See `scanlake --help`."),
    ("prune", "scanlake: No such command: prune. See `scanlake --help`."),
    ("purg", "scanlake: No such command: purg. See `scanlake --help`."),  # what cannot be undone is not offered
    *(
        (typed, f"scanlake: No such command: {typed.split()[0]}. Did you mean {meant}? See `scanlake --help`.")
        for meant, words in OTHER_WORDS.items()
        for typed in words.split(",")
    ),
    ("sync --dry-run", "scanlake: No such option: --dry-run. Did you mean scanlake plan? See `scanlake sync --help`."),
    ("status --rnus 3", "scanlake: No such option: --rnus. Did you mean --runs? See `scanlake status --help`."),
    ("--jsn status", "scanlake: No such option: --jsn. Did you mean --json? See `scanlake --help`."),
    ("images export --out", "Option '--out' requires an argument. See `scanlake images export --help`."),
    ("--lake", "scanlake: Option '--lake' requires an argument. See `scanlake --help`."),
    ("status --runs many", "scanlake: Invalid value for '--runs': 'many' is not a valid whole number."),
    ("status extra", "scanlake: Got unexpected extra argument(s) (extra). See"),
    ("query --format xml x", "scanlake: Invalid value for '--format'"),
    ("emulator --port -1", "--port"),
    ("emulator --port 80000", "--port"),
    ("mcp --json", "mcp prints no JSON object"),
    ("emulator --quirk order", "'order' does not have the form NAME=VALUE."),
    ("emulator --quirk order=backwards", "updated-desc"),
    ("emulator --quirk odrer=shuffled", "Did you mean 'order'"),
    ("emulator --profile none", "Unknown profile 'none'. Use one of "),
    # An option that is none of `check`, or needs another one, runs no other check instead
    ("check --snapshot 1", "--snapshot"),
    ("check --dry-run", "--dry-run"),
    ("check --to file:///x", "--to"),
    ("check --allowed-signers x", "--allowed-signers"),
    # No number is refused as one that is out of bounds is
    ("verify --deep nan", "--deep nan: not a finite number."),
    ("report --timeout nan -o out", "--timeout nan: not a finite number."),
    ("emulator --max-seconds nan", "--max-seconds nan: not a finite number."),
    ("emulator --churn inf", "--churn inf: not a finite number."),
    ("mcp --timeout nan", "--timeout nan: not a finite number."),
    # Secrets are not shown
    ("status --token s3cr3t", "The token must not be on the command line"),
    ("--token=s3cr3t status", "The token must not be on the command line"),
    ("SCANLAKE_TOKEN=s3cr3t query 'SELECT 1 AS s3cr3t'", "Put the token into SCANLAKE_TOKEN"),
    ("sync --set base_url=https://x.example/api/v2/files?token=s3cr3t", "must not be on the command line"),
    *((f"status --set {name}=s3cr3t", f"{name} must not be on the command line") for name in SECRET_SETTINGS),
    ("SCANLAKE_TOKEN='Bearer s3cr3t' sync", "starts with `Bearer`"),
    ("SCANLAKE_BASE_URL=https://u:s3cr3t@service.example sync", "must not have a user or password"),
    ("init --set base_url=https://u:s3cr3t@service.example", "must not have a user or password"),
    ("sync --set proxy=http://u:s3cr3t@proxy.example:1", "must look like http://proxy.example:3128, without user"),
    # Settings
    ("init --source north", "init makes the file of one service."),
    ("init --set max_concurrency=8", "--set max_concurrency: init writes only base_url and token_file."),
    ("init --set bas_url=x", "--set bas_url: init writes only base_url and token_file."),
    *(
        (f"init --set 'base_url={url}'", f"{says}. Type {hint}")
        for url, says, hint in (
            ("http://127.0.0.1:8765/api/v3", "must not end in /api/v3; scanlake calls /api/v2", "the address alone"),
            ("https://service.example/api/v1/", "must not end in /api/v1; scanlake calls /api/v2", "the address alone"),
            ("ftp://service.example", "must look like https://service.example", "the address alone"),
            ("http://service.example", "http is for this machine (127.0.0.1) only", "https://service.example."),
        )
    ),
    ("init --set 'base_url=https://[::1'", "base_url: no address. Type https:// and the host"),
    ("SCANLAKE_BASE_URL= sync", "base_url is required, and is not set in /"),
    ("SCANLAKE_TOKEN= sync", "No token is set."),
    ("SCANLAKE_MAX_CONCURRENCY=many sync", "SCANLAKE_MAX_CONCURRENCY (environment)"),
    ("sync --set max_concurrency=0", "--set max_concurrency"),
    ("status --set max_concurency=8", "did you mean max_concurrency"),
    ("status --set lang", "--set lang: no value. Use --set NAME=VALUE"),
    ("status --set =s3cr3t", "--set =: no name. Use --set NAME=VALUE"),
    ("SCANLAKE_TOKEN= sync --set token_file=gone", "token_file gone: No such file"),
    ("sync --config gone.toml", "gone.toml: not found"),
    ("share A --yes", "--yes requires --send-email"),
    # An empty path, as of an unset variable, is not the current folder, and DuckDB reads no pattern
    ("status --lake ''", "'--lake': is empty; give a path."),
    ("status --config ''", "'--config': is empty; give a path."),
    ("status --log-file ''", "'--log-file': is empty; give a path."),
    ("status --set lake=", "--lake is empty; give a path."),
    ("--lake 'a?b' sync", "which DuckDB reads as a pattern"),
    ("SCANLAKE_LAKE='a*b/lake' status", "which DuckDB reads as a pattern"),
    ("status --lake 'a[1]'", "which DuckDB reads as a pattern"),
    # Times and searches
    ("sync --since yesterday", "--since yesterday: not an instant."),
    ("sync --since 2026-02-01 --until 2026-01-01", "--until is not after --since"),
    ("files --since yesterday", "--since yesterday: not an instant."),
    ("files --until 2026-02-30", "--until 2026-02-30: not an instant."),
    ("files --since 2026-02-02 --until 2026-02-01", "--until is not after --since"),
    ("files ''", "A reference is empty"),
    ("files A --open", "FILES and --open exclude each other"),
    ("files --open --closed", "--closed and --open exclude each other"),
    ("files 7 --limit 3", "FILES and --limit exclude each other"),
    ("files --include images", "Invalid value for '--include': 'images' is not one of"),
    ("files --include geocoding", "--include geocoding requires uploads"),
    ("files --limit 0", "--limit"),
    ("query --json --format csv 'SELECT 1'", "--json and another --format exclude each other"),
    ("query --format html 'SELECT 1'", "Invalid value for '--format': 'html' is not one of"),
    # Reports and links: nothing is ordered, and no folder of another is taken
    ("report -o out", "No files are selected."),
    ("demo --folder lake", "lake exists and is not from an earlier demo."),
    # Queries: where they come from, where they go, what they say
    ("query", "The query is empty."),
    ("query -", "The query is empty."),
    ("query '; -- nothing'", "The query is empty."),
    ("query 'SELECT 1' -o nodir/x.csv", "--out nodir/x.csv: folder nodir does not exist."),
    ("query 'SELECT 1' -o . --format csv", "--out . is a folder."),
    ("query 'SELECT 1' -o circle --format csv", "--out circle is a link that refers to itself."),
    ("query 'SELECT 1' -o answer.docx", ".docx is not an output format. Use .csv"),
    ("query 'SELECT 1' -o a.parquet --format csv", "--out a.parquet: the name means parquet, but --format is csv."),
    ("query 'SELECT 1' --format xlsx", "The format xlsx needs a file. Add --out FILE."),
    ("query 'SELECT 1' -o lake/catalog.duckdb", "--out"),
    ("query 'SELEC 1'", 'Parser Error: syntax error at or near "SELEC". Run `scanlake tables` to list tables and'),
    ("query 'FROM filse'", 'Table with name filse does not exist! Did you mean "files"?'),
    ("query \"COPY files TO 'x.csv'\"", "COPY: a query reads tables only. Use SELECT, FROM, PIVOT, DESCRIBE or SHOW"),
    ("query gone.sql", "gone.sql: No such file or directory. Give the path of a file with a query."),
    # A folder with the name of a file
    *(
        (f"{command} {name}", f"{name}: an export is a folder or a workbook. Use a folder, .xlsx")
        for command in ("export", "export --format csv --tables files")
        for name in ("o.csv", "all.parquet", "a.JSON", "lake.duckdb", "out.zip")
    ),
    ("images export -o images.zip", "must be a folder, but looks like a file name; leave out the extension."),
    ("report --where closed -o all.pdf", "must be a folder, but looks like a file name"),
    ("tables upload", "Did you mean uploads?"),
    ("tables _parts", "_parts"),
    ("tables meta.runs --lake nowhere", "/nowhere. Run `scanlake sync` first, or correct --lake."),
)  # fmt: skip


@every("typed, says", MISTAKES)
def test_a_mistake_is_one_line_with_what_to_do(typed: str, says: str, lake: Path, main: Scanlake) -> None:
    """Each ends with 2 and one line that names the nearest right thing, shows no secret, and changes nothing."""
    circle = lake.parent / "circle"
    circle.unlink(missing_ok=True)
    circle.symlink_to("circle")
    before = sorted(path.name for path in lake.parent.iterdir()), fingerprint(lake)
    words = shlex.split(typed)
    given = [word.split("=", 1) for word in words if word.startswith("SCANLAKE_")]
    answer = main(*words[len(given) :], **SERVICE | dict(given))
    assert answer.code == 2, answer
    line, *drawing = answer.lines
    assert line.startswith("scanlake: ")
    assert all(text.startswith("  ") for text in drawing)
    assert bool(drawing) == (": syntax error" in line)
    assert says in line
    assert line.endswith((".", "`", "?"))
    assert "s3cr3t" not in answer.out + line
    assert (sorted(path.name for path in lake.parent.iterdir()), fingerprint(lake)) == before
