"""dlt: a REST API source with a dependent resource for the details, read by 16 workers, into DuckDB.

Runs in an environment of its own: `python dlt_job.py BASE_URL FOLDER`, token in SCANLAKE_TOKEN.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import dlt
from dlt.sources.rest_api import rest_api_source

INCLUDES = ["uploads", "geocoding", "forms", "fields", "locations", "workflows"]


def main(base_url: str, folder: Path) -> None:
    """Load everything into `folder`/peer.duckdb: lists as `files`, details as `details`."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["EXTRACT__WORKERS"] = "16"
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    source = rest_api_source(
        {
            "client": {
                "base_url": f"{base_url}/api/v2/",
                "auth": {
                    "type": "api_key",
                    "name": "token",
                    "api_key": os.environ["SCANLAKE_TOKEN"],
                    "location": "query",
                },
            },
            "resource_defaults": {"primary_key": "id", "write_disposition": "merge"},
            "resources": [
                {
                    "name": "files",
                    "endpoint": {
                        "path": "files",
                        "params": {"limit": 50, "include[]": INCLUDES},
                        "data_selector": "data",
                        "paginator": {"type": "page_number", "base_page": 1, "total_path": "last_page"},
                    },
                },
                {
                    "name": "details",
                    "parallelized": True,
                    "endpoint": {
                        "path": "files/{resources.files.id}",
                        "paginator": "single_page",
                        "response_actions": [{"status_code": 404, "action": "ignore"}],
                    },
                },
            ],
        },
        parallelized=True,
    )
    pipeline = dlt.pipeline(
        pipeline_name="peer",
        pipelines_dir=str(folder / "state"),
        destination=dlt.destinations.duckdb(str(folder / "peer.duckdb")),
        dataset_name="main_copy",
    )
    pipeline.run(source)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
