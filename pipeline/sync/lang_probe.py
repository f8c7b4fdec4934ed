"""Which call heeds `lang`. The interface names the parameter, but not its call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pipeline.client.protocol import Detail
from schemas.json_decode import InvalidJsonError, decode_json
from schemas.requests import MAX_LIMIT_WITH_INCLUDES, FileQuery
from schemas.tables import UPLOADS, MergeRule

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.client.protocol import Document
    from pipeline.crawl.models import Identity

TextsSource = Literal["list", "detail"]

_KEYS: Final = tuple(column.wire_key for column in UPLOADS.columns if column.merge is MergeRule.BY_LANG)
_MAX_FILES: Final = 4  # that are asked for twice; texts can be equal in two languages


async def find_texts_source(client: Client, lang: str, identity: Identity) -> TextsSource | None:
    """Return which call's texts are in `lang`; None if no recent file has texts that differ.

    A detail that heeds `lang` differs from the one without it. If it does not, and the list's texts do, only the list
    heeds it. Costs one list call and two detail calls for each of at most four files.
    """
    query = FileQuery(include=("uploads",), lang=lang, limit=MAX_LIMIT_WITH_INCLUDES)
    page = await client.list_files(query)
    listed = [(item, _texts(item)) for item in page.items]
    for item, texts in [(item, texts) for item, texts in listed if texts][:_MAX_FILES]:
        file_id = item.instance_id if identity == "file_id" else item.id
        if file_id is None:
            continue
        asked, plain = await client.get_file(file_id, lang=lang), await client.get_file(file_id)
        if not isinstance(asked, Detail) or not isinstance(plain, Detail):
            continue  # deleted meanwhile
        plain_texts = _texts(plain)
        if _texts(asked) != plain_texts:
            return "detail"
        if any(plain_texts.get(upload, texts[upload]) != texts[upload] for upload in texts):
            return "list"
    return None


def _texts(document: Document) -> dict[str, tuple[Any, ...]]:
    """Return the texts that depend on `lang`, by upload; without uploads that have none."""
    try:
        content = decode_json(document.raw)
    except InvalidJsonError:
        return {}
    uploads = content.get("uploads") if isinstance(content, dict) else None
    texts = {}
    for upload in uploads if isinstance(uploads, list) else ():
        if isinstance(upload, dict) and any(upload.get(key) for key in _KEYS):
            texts[str(upload.get("id"))] = tuple(upload.get(key) or None for key in _KEYS)
    return texts
