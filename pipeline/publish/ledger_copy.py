"""The copy of the ledger on a target that is a backup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.atomic_files import sha256_file, temp_name
from pipeline.lake.layout import translate_os_errors
from pipeline.publish.latest import PublishedLedger
from pipeline.publish.target_layout import to_ledger_path
from pipeline.publish.uploads import PendingUpload, create_object

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake
    from pipeline.publish.store_contract import ObjectStore


def upload_ledger(lake: Lake, store: ObjectStore) -> PublishedLedger:
    """Upload a copy of the ledger. A restore forgets the images that it names and the target does not have."""
    copy = lake.layout.spill_dir / temp_name("backup.sqlite")
    with translate_os_errors(copy):
        copy.parent.mkdir(exist_ok=True)
    try:
        lake.ledger.copy_to(copy)
        sha256, size = sha256_file(copy), copy.stat().st_size
        create_object(store, PendingUpload(to_ledger_path(sha256), copy, size, sha256))
    finally:
        copy.unlink(missing_ok=True)
    return PublishedLedger(to_ledger_path(sha256), size, sha256)
