"""PyAirbyte: a declarative manifest with a substream for the details, into its DuckDB cache.

Runs in an environment of its own: `python airbyte_job.py BASE_URL FOLDER`, token in SCANLAKE_TOKEN.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

INCLUDES = ("uploads", "geocoding", "forms", "fields", "locations", "workflows")


def manifest(base_url: str) -> dict[str, Any]:
    """The two streams, as the connector builder spells them."""
    files = _stream("files", _files(_asking(base_url)))
    details = _stream("details", _details(_asking(base_url), files))
    return {
        "version": "6.0.0",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": ["files"]},
        "streams": [files, details],
        "concurrency_level": {"type": "ConcurrencyLevel", "default_concurrency": 16},
        "spec": {
            "type": "Spec",
            "connection_specification": {"type": "object", "properties": {"token": {"type": "string"}}},
        },
    }


def _stream(name: str, retriever: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {"id": {"type": "integer"}}
    properties |= {key: {"type": "string"} for key in ("scan_code", "updated_at")}
    children = ("uploads", "form_submits", "fields", "locations", "workflow_runs")
    properties |= {key: {"type": ["null", "array"]} for key in children}
    schema = {"type": "object", "additionalProperties": True, "properties": properties}
    return {
        "type": "DeclarativeStream",
        "name": name,
        "primary_key": ["id"],
        "schema_loader": {"type": "InlineSchemaLoader", "schema": schema},
        "retriever": {"type": "SimpleRetriever", **retriever},
    }


def _asking(base_url: str) -> dict[str, Any]:
    return {
        "type": "HttpRequester",
        "url_base": f"{base_url}/api/v2",
        "http_method": "GET",
        "authenticator": {
            "type": "ApiKeyAuthenticator",
            "api_token": "{{ config['token'] }}",
            "inject_into": _parameter("token"),
        },
    }


def _parameter(name: str) -> dict[str, Any]:
    return {"type": "RequestOption", "inject_into": "request_parameter", "field_name": name}


def _selector(*path: str) -> dict[str, Any]:
    return {"type": "RecordSelector", "extractor": {"type": "DpathExtractor", "field_path": list(path)}}


def _files(asking: dict[str, Any]) -> dict[str, Any]:
    parameters = {"include[]": "{{ " + repr(list(INCLUDES)) + " }}"}
    return {
        "requester": {**asking, "path": "/files", "request_parameters": parameters},
        "record_selector": _selector("data"),
        "paginator": {
            "type": "DefaultPaginator",
            "page_token_option": _parameter("page"),
            "page_size_option": _parameter("limit"),
            "pagination_strategy": {"type": "PageIncrement", "start_from_page": 1, "page_size": 50},
        },
    }


def _details(asking: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
    ignored = {"type": "HttpResponseFilter", "action": "IGNORE", "http_codes": [404]}
    return {
        "requester": {
            **asking,
            "path": "/files/{{ stream_partition.file }}",
            "error_handler": {"type": "DefaultErrorHandler", "response_filters": [ignored]},
        },
        "record_selector": _selector(),
        "partition_router": {
            "type": "SubstreamPartitionRouter",
            "parent_stream_configs": [
                {"type": "ParentStreamConfig", "stream": files, "parent_key": "id", "partition_field": "file"}
            ],
        },
    }


def main(base_url: str, folder: Path) -> None:
    """Read both streams into `folder`/peer.duckdb."""
    os.environ["AIRBYTE_NO_TELEMETRY"] = os.environ["DO_NOT_TRACK"] = "1"
    os.environ["AIRBYTE_OFFLINE_MODE"] = "1"
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    import airbyte as ab  # noqa: PLC0415 - it reads the environment when imported
    from airbyte.caches import DuckDBCache  # noqa: PLC0415

    source = ab.get_source(
        "source-files", config={"token": os.environ["SCANLAKE_TOKEN"]}, source_manifest=manifest(base_url)
    )
    source.select_all_streams()
    source.read(cache=DuckDBCache(db_path=folder / "peer.duckdb", schema_name="main_copy"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute())
