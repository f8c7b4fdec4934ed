"""Signatures by ssh-keygen: whoever has an SSH key can sign, whoever has its public half can check."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pipeline.errors import SettingsError

NAMESPACE: Final = "scanlake-report"
_SECONDS: Final = 60.0
_PROGRAM: Final = "ssh-keygen"


def sign(key: Path, content: bytes) -> bytes:
    """The signature of `content` by an SSH key: a private one, or the public half of one that the agent holds.

    Raises `SettingsError` when that cannot be: without the program, the key, or a passphrase that is missing.
    """
    if not key.is_file():
        raise SettingsError(f"--sign {key}: no such key.", remedy="Name an SSH key, ~/.ssh/id_ed25519 for example.")
    done = _run("-Y", "sign", "-q", "-f", str(key.absolute()), "-n", NAMESPACE, given=content)
    if done.returncode or b"BEGIN SSH SIGNATURE" not in done.stdout:
        raise SettingsError(
            f"--sign {key}: ssh-keygen cannot sign with it.",
            remedy="A key with a passphrase must be held by ssh-agent: name its .pub file then.",
        )
    return done.stdout


def signer_of(content: bytes, signature: bytes, signers: Path | None) -> str | None:
    """Who signed `content`: the key's fingerprint, or with `signers` (ssh's allowed_signers) the name there.

    None when the signature is not of this content, or not of one of the signers.
    """
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        kept = Path(folder) / "signature"
        kept.write_bytes(signature)
        if signers is None:
            done = _run("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(kept), given=content)
            found = re.search(rb"(SHA256:[A-Za-z0-9+/=]+)", done.stdout)
            return found[1].decode() if done.returncode == 0 and found else None
        if not signers.is_file():
            raise SettingsError(f"--signers {signers}: no such file.", remedy="Name a file as ssh-keygen(1) has it.")
        listed = ("-f", str(signers.absolute()), "-s", str(kept))
        named = _run("-Y", "find-principals", *listed)
        names = named.stdout.decode("utf-8", "replace").split() if named.returncode == 0 else []
        for name in names:
            if _run("-Y", "verify", "-I", name, "-n", NAMESPACE, *listed, given=content).returncode == 0:
                return name
        return None


def _run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = shutil.which(_PROGRAM)
    if program is None:
        raise SettingsError("ssh-keygen is not installed.", remedy="Install OpenSSH's client, or leave signing out.")
    try:
        return subprocess.run(  # noqa: S603 - a program of the system's, with arguments of ours
            [program, *arguments], input=given, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise SettingsError(
            "ssh-keygen does not answer.", remedy="Does it ask for a passphrase? Use ssh-agent."
        ) from None
