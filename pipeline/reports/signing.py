"""Signatures with ssh-keygen: an SSH key signs, its public key verifies."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pipeline.errors import SettingsError
from pipeline.processes.environment import environment_without_tokens

NAMESPACE: Final = "scanlake-report"
_TIMEOUT_SECONDS: Final = 60.0
_PROGRAM: Final = "ssh-keygen"


def sign(key: Path, content: bytes) -> bytes:
    """Return the signature of `content` by an SSH key.

    `key` is a private key, or the public key of a private key in ssh-agent. Raises `SettingsError` if ssh-keygen, the
    key or its passphrase is missing.
    """
    if not key.is_file():
        raise SettingsError(f"--sign {key}: no such key.", hint="Use an SSH key, for example ~/.ssh/id_ed25519.")
    result = _run_ssh_keygen("-Y", "sign", "-q", "-f", str(key.absolute()), "-n", NAMESPACE, content=content)
    if result.returncode or b"BEGIN SSH SIGNATURE" not in result.stdout:
        raise SettingsError(
            f"--sign {key}: ssh-keygen cannot sign with this key.",
            hint="Add a key with a passphrase to ssh-agent and use its .pub file.",
        )
    return result.stdout


def verify_signature(content: bytes, signature: bytes, allowed_signers: Path | None) -> str | None:
    """Return the signer of `content`: the key's fingerprint, or its name in `allowed_signers` (a file of ssh).

    None if the signature is not of this content, or not by an allowed signer.
    """
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        signature_file = Path(folder) / "signature"
        signature_file.write_bytes(signature)
        if allowed_signers is None:
            arguments = ("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature_file))
            result = _run_ssh_keygen(*arguments, content=content)
            fingerprint = re.search(rb"(SHA256:[A-Za-z0-9+/=]+)", result.stdout)
            return fingerprint[1].decode() if result.returncode == 0 and fingerprint else None
        if not allowed_signers.is_file():
            raise SettingsError(
                f"--allowed-signers {allowed_signers}: no such file.",
                hint="Use a file in the format ALLOWED SIGNERS of ssh-keygen(1).",
            )
        files = ("-f", str(allowed_signers.absolute()), "-s", str(signature_file))
        principals = _run_ssh_keygen("-Y", "find-principals", *files)
        names = principals.stdout.decode("utf-8", "replace").split() if principals.returncode == 0 else []
        for name in names:
            if _run_ssh_keygen("-Y", "verify", "-I", name, "-n", NAMESPACE, *files, content=content).returncode == 0:
                return name
        return None


def _run_ssh_keygen(*arguments: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = shutil.which(_PROGRAM)
    if program is None:
        raise SettingsError("ssh-keygen is not installed.", hint="Install the OpenSSH client, or omit --sign.")
    try:
        return subprocess.run(  # noqa: S603 - a system program with scanlake's own arguments
            [program, *arguments],
            input=content,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=environment_without_tokens(),
        )
    except subprocess.TimeoutExpired:
        raise SettingsError(
            f"ssh-keygen did not finish within {_TIMEOUT_SECONDS:g} s.",
            hint="Add a key with a passphrase to ssh-agent.",
        ) from None
