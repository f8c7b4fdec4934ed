"""What an error of an object store means: one line and a hint. Pure; the library's text is never shown."""

from __future__ import annotations

import re
from typing import Final

_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>|\"?(?:code|error)\"?: \"([A-Za-z]{1,60})\"")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CREDENTIALS_HINT: Final = "Correct the credentials in the environment, such as AWS_ACCESS_KEY_ID."
_BUCKET_HINT: Final = "Create the bucket, or correct the URL and the endpoint, such as AWS_ENDPOINT_URL."
_REGION_HINT: Final = "Set AWS_REGION to the region of the bucket."
_PERMISSION_HINT: Final = "Allow get, put, list and delete below the target (docs/scale-out.md)."
_HOST_HINT: Final = "Correct the endpoint, such as AWS_ENDPOINT_URL, or the network."
_LATER_HINT: Final = "Run `scanlake publish` again later; the local lake is complete."

_BY_CODE: Final = {
    "NoSuchBucket": ("the bucket does not exist", _BUCKET_HINT),
    "ContainerNotFound": ("the bucket does not exist", _BUCKET_HINT),
    "InvalidBucketName": ("the bucket has no valid name", _BUCKET_HINT),
    "InvalidAccessKeyId": ("the access key is unknown", _CREDENTIALS_HINT),
    "SignatureDoesNotMatch": ("the secret key is wrong", _CREDENTIALS_HINT),
    "InvalidToken": ("the session token is not valid", _CREDENTIALS_HINT),
    "ExpiredToken": ("the credentials have expired", _CREDENTIALS_HINT),
    "AuthorizationHeaderMalformed": ("the region is wrong", _REGION_HINT),
    "PermanentRedirect": ("the bucket is in another region", _REGION_HINT),
    "RequestTimeTooSkewed": ("the clock of this machine is wrong", "Set the clock, then publish again."),
    "RequestExpired": ("the clock of this machine is wrong", "Set the clock, then publish again."),
    "EntityTooLarge": ("the object is too large for one request", "Publish Iceberg tables instead of a mirror."),
    "SlowDown": ("the store limits the rate of requests", _LATER_HINT),
}
_BY_TEXT: Final = (
    ("169.254.169.254", ("no credentials were found", _CREDENTIALS_HINT)),
    ("latest/api/token", ("no credentials were found", _CREDENTIALS_HINT)),
    ("metadata.google", ("no credentials were found", _CREDENTIALS_HINT)),
    ("MissingAccount", ("no storage account is set", "Set AZURE_STORAGE_ACCOUNT_NAME.")),
    ("dns error", ("the host is unknown", _HOST_HINT)),
    ("certificate", ("the certificate of the host is not trusted", _HOST_HINT)),
    ("URL scheme is not allowed", ("the endpoint is not encrypted (http)", "Use https, or set AWS_ALLOW_HTTP=true.")),
    ("kind: Connect", ("the host cannot be reached", _HOST_HINT)),
    ("kind: Timeout", ("the store did not respond in time", _LATER_HINT)),
    ("not yet implemented", ("the store has no such request", "Use a store with conditional writes.")),
    ("Unrecognised", ("the URL is not one of an object store", "Use s3://, gs://, az:// or file://.")),
)


def describe_error(error: Exception) -> tuple[str, str]:
    """Return the problem, without a full stop, and a hint for an error of obstore.

    The text of the error has URLs, which may be signed, and responses: only known codes are taken from it.
    """
    text = str(error)
    match = _CODE.search(text)
    code = (match[1] or match[2]) if match else ""
    if code in _BY_CODE:
        return _BY_CODE[code]
    for mark, description in _BY_TEXT:
        if mark in text:
            return description
    status = _STATUS.search(text)
    return _describe_status(error, int(status[1]) if status else 0, code)


def _describe_status(error: Exception, status: int, code: str) -> tuple[str, str]:
    if status in {401, 403} or type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"}:
        return "the credentials do not permit the request", _PERMISSION_HINT
    if isinstance(error, FileNotFoundError):
        return "the object does not exist", _BUCKET_HINT
    if status:
        reason = f" ({code})" if code else ""
        return f"the store answered {status}{reason}", _LATER_HINT if status >= 500 else _BUCKET_HINT
    return f"the store failed ({type(error).__name__})", _LATER_HINT
