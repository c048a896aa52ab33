"""The token and the self-signed certificate of the TCP ports."""

from __future__ import annotations

import contextlib
import os
import stat

from stoker import places
from stoker.core.model.units import BadValue

TOKEN_BYTES = 32
CERTIFICATE_YEARS = 10


METRICS_NAME = "metrics-token"
"""Name of the file with the token of ports that serve metrics only."""
REPORT_KEY_NAME = "report-key"
"""Name of the file with the key of the tokens with which pods send training reports."""


def token_path(state: str, name: str = "token") -> str:
    """Return the path of a token."""
    return f"{state}/{name}"


def load_token(state: str, name: str = "token") -> str:
    """Return a token of this state; create it at its first use."""
    path = token_path(state, name)
    if not os.path.exists(path):
        from secrets import token_urlsafe

        places.write_private(path, token_urlsafe(TOKEN_BYTES))
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            _check_private(file.fileno(), path)
            text = file.read().strip()
    except OSError as error:
        raise BadValue(f"{path} cannot be read: {error.strerror}.") from None
    if len(text) < TOKEN_BYTES or not text.isascii():
        raise BadValue(f"{path} contains no token. Remove it; a new one will be created.")
    return text


def load_certificate(state: str) -> tuple[str, str]:
    """Return the paths of certificate and key of this state; create them at their first use."""
    paths = f"{state}/tls.crt", f"{state}/tls.key"
    if not all(os.path.exists(path) for path in paths):
        _make_certificate(*paths)
    with open(paths[1], encoding="ascii") as file:
        _check_private(file.fileno(), paths[1])
    return paths


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 of a certificate as `sha256:HEX`, which clients pin."""
    import ssl
    from hashlib import sha256

    with open(certificate, encoding="ascii") as file:
        return "sha256:" + sha256(ssl.PEM_cert_to_DER_cert(file.read())).hexdigest()


def _make_certificate(certificate: str, key: str) -> None:
    import subprocess

    new = f"{certificate}.new", f"{key}.new"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", str(365 * CERTIFICATE_YEARS), "-subj", "/CN=stoker", "-out", new[0],
        "-keyout", new[1],
    ]  # fmt: skip
    for path in new:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    try:
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
            check=False, umask=0o077,
        )  # fmt: skip
    except FileNotFoundError:
        raise BadValue(
            "TLS needs the openssl command to create a certificate. "
            "Install openssl, or listen on 127.0.0.1 only."
        ) from None
    if completed.returncode != 0:
        lines = completed.stderr.strip().splitlines()
        raise BadValue(
            f"openssl could not create a certificate: {lines[-1] if lines else 'no message'}."
        )
    # The key first: if the certificate exists, both do.
    os.rename(new[1], key)
    os.rename(new[0], certificate)


def _check_private(fd: int, path: str) -> None:
    status = os.fstat(fd)
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise BadValue(f"{path} can be read by other users. Remove it; a new one will be created.")
