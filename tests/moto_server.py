"""moto's server of S3 and Glue, which answers one request after the other: `python tests/moto_server.py -p PORT`.

moto checks the condition of a write, and then writes. Side by side two writers can both create an object, which S3
never allows, and the probe of a store finds that out.
"""

from __future__ import annotations

import argparse
from threading import Lock
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from collections.abc import Iterable


class SerialApplication:
    """moto's application, for one request at a time."""

    def __init__(self) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._lock = Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request."""
        with self._lock:
            return [b"".join(self._application(environ, start_response))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-H", "--host", default="127.0.0.1")
    parser.add_argument("-p", "--port", type=int, required=True)
    options = parser.parse_args()
    run_simple(options.host, options.port, SerialApplication(), threaded=True, request_handler=MotoRequestHandler)
