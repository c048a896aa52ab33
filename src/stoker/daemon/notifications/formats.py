"""Messages in the formats of chat services, as JSON, and as plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stoker.daemon.notifications.message import Message

MAX_TEXT = 1900
"""Characters; Discord takes 2,000, the others more."""
CHATS = ("slack", "discord", "teams", "mattermost", "ntfy", "telegram")


def plain_text(message: Message) -> str:
    """Return title, details, log and command as text."""
    lines = [message.title, *message.lines]
    if message.log:
        lines += ["", *(f"  | {line}" for line in message.log)]
    if message.command:
        on = f", on {message.host}" if message.host else ""
        lines += ["", f"Next{on}: {message.command}"]
    lines += [message.link] if message.link else []
    return "\n".join(lines)


def as_json(message: Message) -> bytes:
    """Return a message for a program."""
    body = {
        "event": message.event, "title": message.title, "lines": message.lines,
        "log": message.log, "command": message.command,
        "link": message.link, "host": message.host, **message.facts,
    }  # fmt: skip
    return json.dumps(body).encode()


def chat_request(
    kind: str, url: str, message: Message, options: Mapping[str, str]
) -> tuple[str, bytes, dict[str, str]]:
    """Return URL, body and headers of a message for a chat service."""
    text = plain_text(message)[:MAX_TEXT]
    body: Any
    if kind == "ntfy":
        priority = "high" if message.event in {"fail", "alarm"} else "default"
        headers = {"Title": _header(message.title), "Priority": priority}
        if options.get("token"):
            headers["Authorization"] = f"Bearer {options['token']}"
        return url, text.encode(), headers
    if kind == "telegram":
        url = url or f"https://api.telegram.org/bot{options['token']}/sendMessage"
        body = {"chat_id": options["to"], "text": text, "disable_web_page_preview": True}
    elif kind == "discord":
        # A job named @everyone must mention no users.
        body = {"content": text, "allowed_mentions": {"parse": []}}
    elif kind == "slack":
        for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(mark, entity)
        body = {"text": text}
    else:
        body = {"text": text}
    return url, json.dumps(body).encode(), {"Content-Type": "application/json"}


def _header(text: str) -> str:
    """Return text as a value of a header: one line of ASCII."""
    return " ".join(text.encode("ascii", "replace").decode().split())[:200]
