"""`scanlake publish`: publish the lake again, after a move or for readers that use another path."""

from pipeline.commands._open_lake import open_lake
from pipeline.context import CommandContext, setting_options
from pipeline.errors import ExitCode
from pipeline.formatting import pluralize
from schemas.timestamps import now_us


@setting_options("reader_root")
def run(context: CommandContext) -> ExitCode:
    """Publish the lake again, under its current path or the path that readers see.

    The catalog contains absolute paths of the parts. Publish after moving the lake, or if readers use another path
    (a mount on their machines). Kept snapshots are updated too. The lake stores --reader-root; use the lake's own
    folder to remove it. Every run detects a move automatically.
    """
    settings = context.settings()
    with open_lake(context, settings, "publish") as lake:
        if context.setting_flags["reader_root"] is not None and settings.reader_root is not None:
            lake.set_reader_root(settings.reader_root)
        snapshot = lake.republish(at=now_us())
        reader_root = lake.reader_root
    note = "" if reader_root.is_dir() else " (not reachable from this machine)"
    context.print_result(
        {"snapshot": snapshot.snapshot, "files": snapshot.files, "reader_root": str(reader_root)},
        f"snapshot {snapshot.snapshot}: {pluralize(snapshot.files, 'file')}, read from {reader_root}{note}\n",
    )
    return ExitCode.OK
