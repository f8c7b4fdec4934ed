"""Errors of Iceberg catalogs as errors of scanlake: one line, without URLs, which can contain a password."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError
from pyiceberg import exceptions as iceberg
from requests import HTTPError, RequestException
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from pipeline.errors import PublishConflictError, PublishError

try:  # Glue only
    from botocore.exceptions import BotoCoreError, ClientError

    _AWS_ERRORS: tuple[type[Exception], ...] = (BotoCoreError, ClientError)
except ImportError:
    _AWS_ERRORS = ()

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFLICTS: Final = (iceberg.CommitFailedException, iceberg.TableAlreadyExistsError, IntegrityError)
_REFUSALS: Final = (iceberg.UnauthorizedError, iceberg.ForbiddenError, iceberg.AuthorizationExpiredError)
_REFUSAL_STATUSES: Final = frozenset({401, 403, 419})  # 419: expired, by the protocol of REST catalogs
_OTHERS: Final[tuple[type[Exception], ...]] = (
    SQLAlchemyError,
    RequestException,
    ValidationError,
    iceberg.RESTError,
    iceberg.NoSuchTableError,
    iceberg.NoSuchNamespaceError,
    iceberg.NoSuchPropertyException,
    iceberg.NotInstalledError,
    iceberg.ValidationError,
    iceberg.ValidationException,
    *_AWS_ERRORS,
)
CONFIGURATION_HINT: Final = (
    "Correct the catalog scanlake in pyiceberg's configuration (PYICEBERG_CATALOG__SCANLAKE__*)."
)


@contextmanager
def translate_catalog_errors() -> Iterator[None]:
    """Turn the errors of pyiceberg, its database and its HTTP client into `PublishError`."""
    try:
        yield
    except _CONFLICTS as error:
        raise PublishConflictError("Iceberg: another publisher has changed a table.") from error
    except _OTHERS as error:
        problem = "refuses the credentials" if _is_refusal(error) else f"cannot be used ({type(error).__name__})"
        raise PublishError(f"The Iceberg catalog {problem}.", hint=CONFIGURATION_HINT) from error


def _is_refusal(error: Exception) -> bool:
    """Return whether the catalog refuses the credentials: pyiceberg names that only for its own endpoints."""
    status = error.response.status_code if isinstance(error, HTTPError) and error.response is not None else None
    return isinstance(error, _REFUSALS) or status in _REFUSAL_STATUSES
