"""The files of the web page: `/` and `/ui/NAME`. They are public and contain no data."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
from functools import lru_cache
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

import stoker
from stoker.engine import CommandRejected

DIRECTORY = os.path.join(os.path.dirname(stoker.__file__), "ui", "dist")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
HASHED_NAME = re.compile(r".*-[0-9A-Za-z]{8,}\.[a-z0-9]+")
TYPES = {
    "html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8", "svg": "image/svg+xml", "json": "application/json",
    "png": "image/png", "ico": "image/x-icon", "webmanifest": "application/manifest+json",
    "txt": "text/plain; charset=utf-8",
}  # fmt: skip
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
COMPRESSED_FROM_BYTES = 1000
ONE_YEAR = "public, max-age=31536000, immutable"


async def page_file(request: Request) -> Response:
    """Return a file of the page, compressed if the client accepts it."""
    name = request.path_params.get("name", "index.html")
    kind = TYPES.get(name.rpartition(".")[2])
    if not NAME.fullmatch(name) or kind is None:
        raise CommandRejected(f"There is no file {name[:60]}.", "not_found")
    accepts = "gzip" in request.headers.get("accept-encoding", "")
    data, is_compressed = await asyncio.to_thread(_read, os.path.join(DIRECTORY, name), accepts)
    tag = f'"{sha256(data).hexdigest()[:20]}"'
    headers = {
        **SECURITY_HEADERS, "ETag": tag, "Vary": "Accept-Encoding",
        "Cache-Control": ONE_YEAR if HASHED_NAME.fullmatch(name) else "no-cache",
    }  # fmt: skip
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, 200, headers, kind)


def _read(path: str, accepts_gzip: bool) -> tuple[bytes, bool]:
    """Return the content of a file, and whether it is compressed."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        text = f"There is no file {os.path.basename(path)} in this installation."
        raise CommandRejected(text, "not_found") from None
    if accepts_gzip and len(data) >= COMPRESSED_FROM_BYTES:
        return _compressed(data), True
    return data, False


@lru_cache(maxsize=8)
def _compressed(data: bytes) -> bytes:
    """Compress a file; the largest takes about 20 ms, once per start of the daemon."""
    return gzip.compress(data, 9, mtime=0)
