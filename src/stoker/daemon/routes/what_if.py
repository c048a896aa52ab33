"""GET /what-if: `stoker what-if` in a process of its own, one at a time."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import Any

from msgspec import DecodeError
from msgspec.json import decode
from starlette.requests import Request

from stoker.daemon.http.codec import parse_number, wait_for_disconnect
from stoker.daemon.routes.bridge import RouteContext
from stoker.engine import CommandRejected

COMMAND = ("nice", "-n", "10", sys.executable, "-P", "-m", "stoker", "what-if", "--json")
TIMEOUT_SECONDS = 120.0
MAX_CHANGES = 20
WORDS = {
    "policy": re.compile(r"\w{1,40}"),
    "parameter": re.compile(r"\w{1,40}=[\w.]{1,20}"),
    "add": re.compile(r"(gpus|node)=[\w,]{1,40}"),
    "remove": re.compile(r"node=[^\x00-\x1f]{1,200}"),
    "priority": re.compile(r"[\w-]{1,40}=[\w+-]{1,20}"),
}


async def what_if(api: RouteContext, request: Request) -> Any:
    """Predict the effect of another policy, other nodes or another priority."""
    words = _words(request)
    async with api.simulation:
        disconnected = asyncio.ensure_future(wait_for_disconnect(request))
        reply = asyncio.ensure_future(_run(words))
        try:
            await asyncio.wait(
                [reply, disconnected], timeout=TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if reply.done():
                return reply.result()
        finally:
            reply.cancel()
            disconnected.cancel()
    raise CommandRejected(
        f"The simulation took more than {TIMEOUT_SECONDS:.0f} s; try fewer days.", "unavailable"
    )


def _words(request: Request) -> list[str]:
    """Return the arguments of the command; values are checked, so that none is an option."""
    query, words = request.query_params, []
    for name, pattern in WORDS.items():
        values = query.getlist(name)[: MAX_CHANGES + 1]
        if len(values) > (1 if name == "policy" else MAX_CHANGES):
            raise CommandRejected(f"'{name}' is given too often.", "usage")
        for value in values:
            if not pattern.fullmatch(value):
                raise CommandRejected(f"'{name}' cannot be {value[:60]!r}.", "usage")
            words.append(value if name == "parameter" else f"--{name}={value}")
    if not words:
        raise CommandRejected("Name a change: policy, add, remove or priority.", "usage")
    days = parse_number(query.get("days"), "days")
    return [f"--days={days}", *words] if days else words


async def _run(words: list[str]) -> dict[str, Any]:
    environment = {name: text for name, text in os.environ.items() if name != "STOKER_SERVER"}
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    try:
        reply: dict[str, Any] = decode(output, type=dict[str, Any])
    except DecodeError:
        raise CommandRejected("The simulation failed; see stoker what-if.") from None
    if "error" in reply:
        raise CommandRejected(str(reply["error"]["message"]), "usage")
    return reply
