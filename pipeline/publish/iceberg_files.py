"""Iceberg's files in an object store: read, and created once, never replaced."""

# ruff: noqa: D102 - the base classes describe the methods

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT

from pipeline.publish.stores import open_store

if TYPE_CHECKING:
    from types import TracebackType

    from pyiceberg.typedef import Properties

    from pipeline.publish.object_store import ObjectStore


class StoreFileIO(FileIO):
    """Files by their location (a URL). `stores` are used for the locations below them; others are opened by URL.

    Catalogs that open files themselves create it by its name, with their properties alone.
    """

    def __init__(self, properties: Properties = EMPTY_DICT, stores: tuple[ObjectStore, ...] = ()) -> None:
        super().__init__(properties)
        self._stores = {store.base_url: store for store in stores}
        self._sizes: list[int] = []  # threads append

    @property
    def bytes_written(self) -> int:
        """Size of the files that were created."""
        return sum(self._sizes)

    def find_object(self, location: str) -> tuple[ObjectStore, str]:
        """Return the store of a location, and the path in it."""
        for base_url, store in self._stores.items():
            if location.startswith(f"{base_url}/"):
                return store, location[len(base_url) + 1 :]
        parts = urlsplit(location)
        # The root of a bucket, or the folder of a local file: no other part of the URL is known to be a store.
        base_url = f"{parts.scheme}://{parts.netloc}" if parts.netloc else location.rpartition("/")[0]
        store = self._stores[base_url] = open_store(base_url)
        return store, location[len(base_url) + 1 :]

    def open_root(self, location: str) -> ObjectStore:
        """Return the store below a location."""
        return self._stores.get(location) or open_store(location)

    def new_input(self, location: str) -> StoredInput:
        return StoredInput(location, *self.find_object(location))

    def new_output(self, location: str) -> StoredOutput:
        return StoredOutput(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        store, path = self.find_object(location if isinstance(location, str) else location.location)
        store.delete([path])

    def read(self, location: str) -> bytes:
        """Return the content of a file."""
        store, path = self.find_object(location)
        return store.read(path)

    def create(self, location: str, content: bytes) -> None:
        """Write a new file. Raises `FileExistsError` if it exists."""
        store, path = self.find_object(location)
        # The library repeats a request whose response was lost: then this writer has created the file.
        if not store.create(path, content) and store.read(path) != content:
            raise FileExistsError(location)
        self._sizes.append(len(content))


class StoredInput(InputFile):
    """A file to read. It is read whole: metadata and delete files are small."""

    def __init__(self, location: str, store: ObjectStore, path: str) -> None:
        super().__init__(location)
        self._store, self._path = store, path

    def __len__(self) -> int:
        stored = self._store.head(self._path)
        return 0 if stored is None else stored.bytes

    def exists(self) -> bool:
        return self._store.head(self._path) is not None

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002 - the signature of the base class
        return BytesIO(self._store.read(self._path))


class StoredOutput(OutputFile):
    """A file to create. It is sent when its stream is closed without an error."""

    def __init__(self, io: StoreFileIO, location: str) -> None:
        super().__init__(location)
        self._io = io
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def exists(self) -> bool:
        return self._io.new_input(self.location).exists()

    def to_input_file(self) -> StoredInput:
        return self._io.new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002, FBT001, FBT002 - never replaced
        return _OutputBuffer(self)

    def send(self, content: bytes) -> None:
        """Write the file."""
        self._io.create(self.location, content)
        self._size = len(content)


class _OutputBuffer(BytesIO):
    """The content of a file while it is written."""

    def __init__(self, output: StoredOutput) -> None:
        super().__init__()
        self._output: StoredOutput | None = output

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        if kind is not None:
            self._output = None
        self.close()

    def close(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            output.send(self.getvalue())
        super().close()
