"""Verify: compare the lake with the service's whole list, repair the differences, record the result.

Incremental lists never show a deletion. A verify reads the whole list cheaply (no includes, limit 250, windows cut
at the update times that the lake knows) and compares ids and update times. `deep` compares details as well.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail, NotFound
from pipeline.crawl.details import detail_for_key, max_deletions
from pipeline.crawl.models import CrawlOptions, SharedFileIdError
from pipeline.crawl.windows import ALL_TIME, Window, split_by_timestamps
from pipeline.errors import ProtocolError, ScanlakeError, SettingsError, TimeLimitReachedError
from pipeline.lake.catalog.documents import read_documents
from pipeline.lake.ledger.queries import VerificationRecord
from pipeline.output.logs import log
from pipeline.sync.crawl_runner import crawl_options
from pipeline.sync.differences import Differences, has_lost_too_many, select_rotating_share, shrunken_list_error
from pipeline.sync.refetch import read_refetch_requests
from pipeline.sync.run import open_run
from schemas.file_versions import Tombstone, content_digest, same_content
from schemas.json_decode import decode_object
from schemas.timestamps import DAY, SECOND, now_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pipeline.crawl.models import CommitBatch
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.queries import FileVersionRecord, LedgerQueries
    from pipeline.output.progress import Progress
    from pipeline.settings.settings import Settings
    from pipeline.sync.run import RunSession
    from pipeline.sync.sync import SyncSummary

_DATE_ERROR: Final = 2 * SECOND  # of a time that a `Date` gives
_KNOWN_TENTHS: Final = 9
"""Of a page for the files of a window that the lake has. The rest is room for others."""
_FILES_PER_ROUND: Final = 256  # files fetched by id concurrently; the rate limiter decides how many at a time


class VerifyStopped(Struct, frozen=True):
    """A regular verify that ended at `max_duration_seconds`: a planned stop, without a result."""

    error: str
    state: str = "stopped"


def is_due(ledger: LedgerQueries, settings: Settings) -> bool:
    """Return whether the last verify, or the first sync, was more than `verify_every_days` ago."""
    last = ledger.properties.verified_or_synced_at
    days = settings.verify_every_days
    return bool(days) and last is not None and abs(now_us() - last) >= days * DAY  # a wrong clock may have set it


async def verify_if_due(
    lake: Lake, settings: Settings, token: str, summary: SyncSummary, progress: Progress
) -> VerifyResult | VerifyStopped | None:
    """Verify after a sync; return None if that is not due, or if the sync was stopped.

    At `max_duration_seconds` the verify stops and stays due for the next sync. Raises a `ScanlakeError`.
    """
    if summary.state != "done" or not is_due(lake.ledger, settings):
        return None
    try:
        return await verify(lake, settings, token, VerifyMode(), progress)
    except TimeLimitReachedError as limit:
        return VerifyStopped(limit.message)


class VerifyMode(Struct, frozen=True):
    """What a verify may do. `deep` is the share of files whose details are read again, 0 to 1."""

    check_only: bool = False
    accept_deletions: bool = False
    accept_new_base_url: bool = False
    deep: float = 0.0

    @property
    def name(self) -> str:
        """Name of the mode in the record."""
        return ("check" if self.check_only else "repair") + (f", deep {self.deep:g}" if self.deep else "")


class VerifyResult(VerificationRecord, frozen=True):
    """A verification: counts of files, the first ids of each kind of difference, and the calls that it took.

    `consistent`: lake and service agree, after the repair unless the mode was check only. `rejects` are
    files whose details could not be fetched, and list items without a usable id. `untimed` files have no update time in
    the list, so their details are compared; `uncompared` are files whose details were to be compared and are not.
    `unproven` files are in no list that was consistent, and not deleted. `unseen` files are counted by the service's
    list, and shown by none of its pages. `unrepaired` files were to be stored again and are not.
    """

    requests: Mapping[str, int]
    seconds: float
    snapshot: int
    rejects: int
    untimed: int
    uncompared: int
    unproven: int
    unseen: int
    unrepaired: int


async def verify(lake: Lake, settings: Settings, token: str, mode: VerifyMode, progress: Progress) -> VerifyResult:
    """Compare the lake with the service. Raises a `ScanlakeError`; repaired files are published before that."""
    if mode.deep and settings.fetch_details == "never":
        raise SettingsError(
            'A deep verify compares details, and fetch_details = "never" fetches none.',
            hint="Verify without --deep, or change fetch_details.",
        )
    async with open_run(
        lake, settings, token, progress, command="verify", accept_new_base_url=mode.accept_new_base_url
    ) as run:
        if await run.ledger_thread.call(run.watermark_us) is None:
            raise SettingsError("The lake is not synced yet.", hint="Run `scanlake sync` first.")
        return await _Verify(run, mode).verify()


class _Verify:
    """One verify, step by step."""

    def __init__(self, run: RunSession, mode: VerifyMode) -> None:
        self._run = run
        self._mode = mode
        self._differences = Differences()
        self._target = self._limit_us = 0
        self._unseen: set[int] = set()  # files of the lake that the list has not shown
        self._untimed: set[int] = set()  # files that it has shown without an update time
        self._shows_items = False  # the list shows all of an item
        self._changed_items: set[int] = set()  # untimed files of other list items than the lake has
        self._uncompared = 0
        self._new_files: set[int] = set()
        self._file_count = self._items_without_id = 0
        self._names_without_id: set[tuple[str, ...]] = set()
        self._moved_back: set[int] = set()  # files whose update time is earlier in the service than in the lake
        self._unseen_files = 0  # that the service's list has, and no list has shown

    async def verify(self) -> VerifyResult:
        run = self._run
        self._target = await run.fix_target_watermark()
        is_certain = self._mode.accept_deletions and not self._mode.accept_new_base_url
        if not is_certain and not run.list_is_empty:
            await run.account.check_files()
            await run.account.prove()
        run.account.is_proven = True
        if not self._mode.check_only:
            if is_certain:  # the tenants of what is stored from now on are the lake's
                await run.ledger_thread.call(run.ledger.set_properties, tenants=())
            await run.bind_lake()
        await self._compare_list()
        unproven, self._unseen_files = list(run.crawls.unproven), run.crawls.unproven_files
        files_in_service = self._file_count - len(self._unseen) + len(self._new_files)
        await self._find_deleted(unproven)
        if run.settings.fetch_details == "never":
            self._uncompared = len(self._untimed)
        elif self._mode.deep or self._untimed:
            await self._compare_details()
        if not self._mode.check_only:
            await self._repair()
        return await run.ledger_thread.call(self._finish, files_in_service, len(unproven))

    # Comparison

    def _read_files(self) -> list[int]:
        """Take all files of the lake for unseen. Return their update times in seconds. On the ledger's thread."""
        seconds = []
        for file_id, updated_at in self._run.ledger.iter_files():
            self._unseen.add(file_id)
            if updated_at is not None:
                seconds.append(updated_at // SECOND)
        self._file_count = len(self._unseen)
        return sorted(seconds)

    async def _compare_list(self) -> None:
        """Read the whole list, and collect what differs: without includes, unless files have no update time."""
        run = self._run
        seconds = await run.ledger_thread.call(self._read_files)
        self._shows_items = len(seconds) < self._file_count
        options = replace(
            crawl_options(run.settings, await run.ledger_thread.call(run.identity)),
            fetch_details="never",
            includes=run.settings.includes if self._shows_items else (),
            compare_updated_at_only=True,
        )
        windows = split_by_timestamps(ALL_TIME, seconds, options.query().page_size * _KNOWN_TENTHS // 10)
        watermark = await run.ledger_thread.call(run.watermark_us)
        self._limit_us = self._target * SECOND
        if self._mode.check_only and watermark is not None:
            self._limit_us = min(watermark, self._limit_us)

        async def lookup(file_ids: Sequence[int]) -> dict[int, FileVersionRecord]:
            self._unseen.difference_update(file_ids)
            return await run.lookup_versions(file_ids)

        try:
            await run.crawls.crawl_windows(
                windows, self._classify_batch, lookup, target=self._target, options=options, compares=True
            )
        except SharedFileIdError:
            raise ScanlakeError(
                "Several files of the service share one id, and the lake does not know it yet.",
                hint="Run `scanlake sync --full`.",
            ) from None

    async def _classify_batch(self, batch: CommitBatch) -> None:
        """Sort list items whose update time the lake does not have into missing, stale and changed meanwhile.

        Differences at or after the limit are expected: the file changed during the verify. Of files without an update
        time the list does not show whether they differ.
        """
        items = [reject.document for reject in batch.rejects if reject.file_id is None]
        self._items_without_id += len(items)
        self._names_without_id.update(map(_name_item, items))
        stored = await self._run.lookup_versions([version.file_id for version in batch.versions])
        for version in batch.versions:
            is_new = version.file_id not in stored or stored[version.file_id].deleted
            if is_new:
                self._new_files.add(version.file_id)
            elif version.updated_at is None:
                self._untimed.add(version.file_id)
                digest = content_digest(version.list_item or b"")
                if self._shows_items and not stored[version.file_id].digest.startswith(digest):
                    self._changed_items.add(version.file_id)
                continue
            else:
                self._count_moved_back(stored[version.file_id], version.updated_at)
            if version.updated_at is not None and version.updated_at >= self._limit_us:
                kind = self._differences.changed_meanwhile
            else:
                kind = self._differences.missing if is_new else self._differences.stale
            kind[version.file_id] = version.updated_at

    def _count_moved_back(self, stored: FileVersionRecord, listed_at: int) -> None:
        """Raise if too many files are older in the service than in the lake: it is another account, or a backup.

        An update time in the future was wrong when it was stored; that it is older now is a repair.
        """
        if listed_at < (stored.updated_at or 0) <= self._target * SECOND:
            self._moved_back.add(stored.file_id)
        if (moved_back := len(self._moved_back)) > max_deletions(self._file_count):
            raise ProtocolError(
                f"The service has earlier update times than the lake for more than {moved_back - 1:,} files.",
                hint="Nothing was changed. Check that the token is of the same account; if the service was restored"
                " from a backup, run `scanlake sync --full`.",
            )

    async def _find_deleted(self, unproven: Sequence[Window]) -> None:
        """Find deleted files: the complete list does not show them, and the service does not find them by id."""
        unseen, file_count = sorted(self._unseen), self._file_count
        if unproven:
            unseen = await self._exclude_unproven(unseen, unproven)
        is_suspicious = has_lost_too_many(file_count, len(unseen))
        may_delete = self._mode.accept_deletions or not is_suspicious
        deleted, unlisted, answered = self._differences.deleted, self._differences.unlisted, list[int]()
        error: RetriesExhaustedError | None = None
        for file_ids in _split_rounds(unseen):
            for file_id, answer in zip(file_ids, await self._fetch_by_id(file_ids), strict=True):
                if isinstance(answer, NotFound):
                    deleted[file_id] = answer.evidence
                    continue
                unlisted.append(file_id)
                if isinstance(answer, Detail):
                    answered.append(file_id)
                else:
                    error = answer
            if error is not None and is_suspicious and not (deleted or answered):
                raise error  # an outage shows nothing of a file
            # A few files can be unlisted for ever.
            is_incomplete = is_suspicious and len(answered) > max_deletions(file_count)
            if is_incomplete or not may_delete:
                raise shrunken_list_error(len(unseen), file_count, answered if is_incomplete or not deleted else ())
        if is_suspicious and not deleted:
            raise shrunken_list_error(len(unseen), file_count, answered)

    async def _exclude_unproven(self, file_ids: Sequence[int], unproven: Sequence[Window]) -> list[int]:
        """Return the files outside of `unproven`, and name the others: an inconsistent list is no evidence."""
        doubtful: set[int] = set()
        for chunk in _split_rounds(file_ids):
            for file_id, version in (await self._run.lookup_versions(chunk)).items():
                second = None if version.updated_at is None else version.updated_at // SECOND
                if second is None or any(window.may_contain(second) for window in unproven):
                    doubtful.add(file_id)
        self._differences.unproven += sorted(doubtful)
        return [file_id for file_id in file_ids if file_id not in doubtful]

    async def _fetch_by_id(self, file_ids: Sequence[int]) -> list[Detail | NotFound | RetriesExhaustedError]:
        """Fetch files by id concurrently. The result is the error where all attempts failed."""
        run = self._run
        identity = await run.ledger_thread.call(run.identity)

        async def fetch(file_id: int) -> Detail | NotFound | RetriesExhaustedError:
            try:
                return detail_for_key(file_id, identity, await run.client.get_file(file_id, lang=run.settings.lang))
            except RetriesExhaustedError as error:
                return error

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetch(file_id)) for file_id in file_ids]
        return [task.result() for task in tasks]

    async def _compare_details(self) -> None:
        """Fetch details again and compare their content: those of untimed files, and a share that rotates.

        If every file of the share differs, nothing is known of the others: they are compared too.
        """
        run, differences = self._run, self._differences
        commit_seqs = dict(await run.ledger_thread.call(run.ledger.file_commit_seqs))
        position = await run.ledger_thread.call(lambda: run.ledger.properties.deep_position)
        selected = set(self._untimed)
        if self._mode.deep:
            share, position = select_rotating_share(commit_seqs, position=position, share=self._mode.deep)
            selected |= share
        await self._compare_files({file_id: seq for file_id, seq in commit_seqs.items() if file_id in selected})
        if self._mode.deep and 0 < differences.details_checked == len(differences.details):
            await self._compare_files({file_id: seq for file_id, seq in commit_seqs.items() if file_id not in selected})
        if not self._mode.check_only:
            await run.ledger_thread.call(run.ledger.set_properties, deep_position=position)

    async def _compare_files(self, commit_seqs: Mapping[int, int]) -> None:
        """Compare the details of files, given as {file_id: commit_seq} in the order of the commits."""
        run, untimed = self._run, set(self._untimed)
        for file_ids in _split_rounds(commit_seqs):
            versions = {id_: commit_seqs[id_] for id_ in file_ids if id_ not in self._differences.deleted}
            records = await run.lookup_versions(list(versions))
            stored = await run.ledger_thread.call(read_documents, "detail", run.lake.layout, run.ledger, versions)
            for file_id, answer in zip(versions, await self._fetch_by_id(list(versions)), strict=True):
                if isinstance(answer, Detail):
                    self._compare_detail(records[file_id], stored.get(file_id), answer)
                else:
                    self._uncompared += isinstance(answer, RetriesExhaustedError) or file_id in untimed

    def _compare_detail(self, record: FileVersionRecord, stored: bytes | None, answer: Detail) -> None:
        self._differences.details_checked += 1
        if record.file_id not in self._changed_items and same_content(stored or b"", answer.raw):
            return
        if answer.updated_at is not None and answer.updated_at >= self._limit_us:
            self._differences.changed_meanwhile[record.file_id] = answer.updated_at
        else:
            self._differences.details[record.file_id] = record.updated_at

    # Repair

    async def _repair(self) -> None:
        """Mark deleted files, and fetch every other file that differs."""
        run, differences = self._run, self._differences
        if differences.deleted:
            detected_at = run.client.clock.now_or_local()
            tombstones = [
                Tombstone(file_id, detected_at, f"not in the complete list, and not found by id ({evidence})")
                for file_id, evidence in sorted(differences.deleted.items())
            ]
            await run.ledger_thread.call(lambda: run.lake.commit(replace(run.sink.new_commit(), tombstones=tombstones)))
            run.crawls.stats.deleted += len(tombstones)
        updates = {**differences.details, **differences.missing, **differences.stale}
        # A crawl fetches what it takes for changed: a list does not show that a detail differs.
        await run.ledger_thread.call(run.ledger.mark_unstable, differences.details)
        seconds = {None if update is None else update // SECOND for update in updates.values()}
        file_count = await run.ledger_thread.call(run.ledger.count_files)
        pages = 1 + (file_count + len(updates)) // CrawlOptions(includes=run.settings.includes).query().page_size
        windows = [Window(second, second + 1) for second in sorted(it for it in seconds if it is not None)]
        if windows or differences.changed_meanwhile:
            windows.append(Window(self._target, None))  # what is to be repaired can change meanwhile, too
        if None in seconds or len(seconds) > pages:
            # To list all files costs less than to list each second, and finds those that have no update time.
            windows = [ALL_TIME]
        refetches = await run.ledger_thread.call(read_refetch_requests, run.lake)
        if windows or refetches:
            await run.crawl_and_commit(windows, target=self._target, refetches=refetches)
        if await run.ledger_thread.call(self._find_unstored):  # no window shows them
            await run.crawl_and_commit([ALL_TIME], target=self._target, compares=True)

    # End; on the ledger's thread

    def _choose_time(self) -> int:
        """Return the time of this verification. A `Date` has whole seconds: it can seem earlier than the last."""
        now, last = self._run.client.clock.now_or_local(), self._run.ledger.last_verification()
        earliest = 0 if last is None else last.verified_at + 1
        return earliest if now < earliest <= now + _DATE_ERROR else now

    def _finish(self, files_in_service: int, unproven_windows: int) -> VerifyResult:
        run, differences = self._run, self._differences
        if self._mode.check_only:
            is_consistent = not (differences.missing or differences.stale or differences.deleted or differences.details)
        else:
            rejected = run.ledger.rejected_files()
            differing = {**differences.missing, **differences.stale, **differences.details}
            differences.unrepaired = sorted({*self._find_unstored(), *(rejected & differing.keys())})
            is_consistent = not differences.unrepaired
            if not unproven_windows:
                names = self._names_without_id
                run.ledger.delete_rejects_without_id(run.run_id, lambda item: _name_item(item) in names)
        # Both sides count: a file that the list does not show is no proof that the lake has what the service has.
        rejects = run.ledger.count_rejected_files() + self._items_without_id
        is_consistent &= not any((differences.unlisted, rejects, self._uncompared, self._unseen_files))
        watermark = run.watermark_us()
        verification = VerificationRecord(
            run_id=run.run_id,
            verified_at=to_datetime(self._choose_time()),
            mode=self._mode.name,
            consistent=is_consistent and not unproven_windows,
            watermark=None if watermark is None else to_datetime(watermark),
            files_in_service=files_in_service,
            files_in_lake=run.ledger.count_files(),
            missing=len(differences.missing),
            stale=len(differences.stale),
            deleted=len(differences.deleted),
            unlisted=len(differences.unlisted),
            changed_meanwhile=len(differences.changed_meanwhile),
            details_checked=differences.details_checked,
            details_differing=len(differences.details),
            unproven_windows=unproven_windows,
            ids=differences.list_ids(),
        )
        run.ledger.record_verification(verification, repairs=not self._mode.check_only)
        # A commit makes the catalog outdated: if this process is killed now, the next run publishes the record.
        run.lake.commit(run.sink.new_commit())
        snapshot = run.finish("done")
        log.info("verification.recorded", consistent=verification.consistent, files_in_service=files_in_service)
        counts = run.client.stats
        requests = {"list": counts.list, "detail": counts.detail, "total": counts.requests}
        return VerifyResult(
            **asdict(verification),
            requests=requests,
            seconds=run.update_record("done").seconds,
            snapshot=snapshot.snapshot,
            rejects=rejects,
            untimed=len(self._untimed),
            uncompared=self._uncompared,
            unproven=len(differences.unproven),
            unseen=self._unseen_files,
            unrepaired=len(differences.unrepaired),
        )

    def _find_unstored(self) -> list[int]:
        """Return the missing, stale or different files that this run has not stored."""
        differences, unstored = self._differences, list[int]()
        for file_ids in _split_rounds({**differences.missing, **differences.stale, **differences.details}):
            stored = self._run.ledger.file_versions(file_ids)
            unstored += [id_ for id_ in file_ids if id_ not in stored or stored[id_].run_id != self._run.run_id]
        return unstored


def _name_item(document: bytes) -> tuple[str, ...]:
    """Return what names a list item without an id, whatever includes it has: its reference and update time."""
    item = decode_object(document)
    return (str(item.get("scan_code")), str(item.get("updated_at"))) if item else (document.hex(),)


def _split_rounds(file_ids: Iterable[int]) -> Iterator[list[int]]:
    """Yield the files in groups that are fetched concurrently."""
    ids = list(file_ids)
    for start in range(0, len(ids), _FILES_PER_ROUND):
        yield ids[start : start + _FILES_PER_ROUND]
