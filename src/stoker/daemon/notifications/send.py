"""Deliver one message: `python -m stoker.daemon.notifications.send`.

Reads a job as JSON from stdin and prints `{"error": null}`. A process of its own, which the daemon
ends after a time: name resolution and servers may hang, and its memory has the secrets.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any
from urllib.parse import urlsplit

from msgspec.json import Decoder, encode

from stoker.daemon.notifications.formats import CHATS, as_json, chat_request, plain_text
from stoker.daemon.notifications.message import COMMAND_SECONDS, Message, SendJob, sendmail

TIMEOUT_SECONDS = 10.0
MAX_REPLY_BYTES = 65536


class NotDelivered(Exception):
    """A message was not accepted; the text has no secrets."""


def main() -> None:
    """Send what stdin says."""
    job = Decoder(SendJob).decode(sys.stdin.buffer.read())
    sys.stdout.buffer.write(encode({"error": deliver(job)}))


def deliver(job: SendJob) -> str | None:
    """Send a message; return why it was not accepted."""
    secrets: list[str] = []
    try:
        target = {key: _resolve(key, value, secrets) for key, value in job.target.items()}
        _send(target, job)
    except NotDelivered as error:
        return _without(str(error), secrets)
    except Exception as error:  # noqa: BLE001 - every error is the reply
        return _without(f"{type(error).__name__}: {error}", secrets)
    return None


def _resolve(key: str, value: str, secrets: list[str]) -> str:
    """Return an option; `env:NAME`, `file:PATH` and `cmd:COMMAND` say where it is."""
    source, colon, place = value.partition(":")
    if key not in SECRET_KEYS:
        return value
    if colon and source == "env":
        if place not in os.environ:
            raise NotDelivered(f"{key}: the daemon's environment has no {place}")
        value = os.environ[place]
    elif colon and source == "file":
        try:
            with open(os.path.expanduser(place), encoding="utf-8") as file:
                value = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotDelivered(f"{key}: {place} cannot be read: {error}") from None
    elif colon and source == "cmd":
        done = subprocess.run(
            ["/bin/sh", "-c", place], capture_output=True, timeout=TIMEOUT_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise NotDelivered(f"{key}: its command ended with code {done.returncode}")
        value = done.stdout.decode("utf-8", "replace").strip()
    secrets.append(value)
    secrets += [part for part in urlsplit(value).path.split("/") if len(part) > 7]
    return value


SECRET_KEYS = frozenset({"url", "token", "secret", "password"})


def _without(text: str, secrets: list[str]) -> str:
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "…")
    return " ".join(text.split())[:300]


def _send(target: dict[str, str], job: SendJob) -> None:
    kind, message = target["kind"], job.message
    if kind == "email":
        _send_mail(target, job)
    elif kind == "command":
        _run(["/bin/sh", "-c", target["command"]], COMMAND_SECONDS, _environment(message))
    elif kind == "desktop":
        urgency = "critical" if message.event in {"fail", "alarm"} else "normal"
        text = "\n".join(message.lines)
        _run(["notify-send", "-a", "stoker", "-u", urgency, "--", message.title, text],
             TIMEOUT_SECONDS)  # fmt: skip
    elif kind == "apprise":
        _send_by_apprise(target["url"], message)
    elif kind in CHATS:
        url, body, headers = chat_request(kind, target.get("url", ""), message, target)
        post(url, body, headers)
    else:
        body = as_json(message)
        headers = {"Content-Type": "application/json", "Idempotency-Key": job.idempotency_key}
        if target.get("secret"):
            digest = hmac.new(target["secret"].encode(), body, hashlib.sha256).hexdigest()
            headers["Stoker-Signature"] = f"sha256={digest}"
        post(target["url"], body, headers)


@contextlib.contextmanager
def _named_errors(host: str) -> Iterator[None]:
    """Turn errors of a connection into one that names the host."""
    import ssl
    from http.client import HTTPException

    try:
        yield
    except ssl.SSLError as error:
        raise NotDelivered(f"{host}: TLS: {error.reason or error}") from None
    except TimeoutError:
        raise NotDelivered(f"{host} has not answered for {TIMEOUT_SECONDS:.0f} s") from None
    except (OSError, HTTPException) as error:  # SMTPException is an OSError
        raise NotDelivered(f"{host}: {error}") from None


def post(url: str, body: bytes, headers: dict[str, str]) -> None:
    """Send a request; accept 2xx only, and follow no redirect: it would get the message, too."""
    import ssl
    from http.client import HTTPConnection, HTTPSConnection

    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise NotDelivered("its url is not an address such as https://host/path")
    host = parts.hostname
    connection: HTTPConnection
    with _named_errors(host):
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = HTTPSConnection(host, parts.port, timeout=TIMEOUT_SECONDS, context=context)
        else:
            connection = HTTPConnection(host, parts.port, timeout=TIMEOUT_SECONDS)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"User-Agent": "stoker", **headers})
            reply = connection.getresponse()
            reply.read(MAX_REPLY_BYTES)
    if 300 <= reply.status < 400:
        to = urlsplit(reply.getheader("Location") or "").hostname or host
        raise NotDelivered(f"{host} redirects to {to}; write the final address as its url")
    if not 200 <= reply.status < 300:
        raise NotDelivered(f"{host} answered {reply.status} {reply.reason}")


# -- e-mail -------------------------------------------------------------------------------


def _send_mail(target: dict[str, str], job: SendJob) -> None:
    mail, message = EmailMessage(), job.message
    sender = target.get("sender") or _default_sender()
    try:
        mail["From"], mail["To"] = sender, target["to"]
        mail["Subject"] = " ".join(f"stoker: {message.title}".split())[:200]
        if job.idempotency_key:
            mail["Message-ID"] = f"<{job.idempotency_key}@stoker>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(plain_text(message))
    except (ValueError, IndexError, TypeError) as error:
        raise NotDelivered(f"'{target['to'][:60]}' is not an e-mail address: {error}") from None
    if not target.get("smtp"):
        program = sendmail()
        if program is None:
            raise NotDelivered("no smtp is configured, and there is no sendmail")
        _run([program, "-t", "-i"], TIMEOUT_SECONDS, data=mail.as_bytes())
        return
    _send_smtp(target, mail)


def _send_smtp(target: dict[str, str], mail: EmailMessage) -> None:
    import smtplib
    import ssl

    host, port = mail_server(target["smtp"])
    context = ssl.create_default_context()
    client: smtplib.SMTP
    with _named_errors(host):
        if port == 465:
            client = smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_SECONDS, context=context)
        else:
            client = smtplib.SMTP(host, port, timeout=TIMEOUT_SECONDS)
        with client:
            client.ehlo()
            if port != 465 and client.has_extn("starttls"):
                client.starttls(context=context)
                client.ehlo()
            elif port != 465 and target.get("password"):
                raise NotDelivered(f"{host} offers no TLS: the password is not sent")
            if target.get("user"):
                client.login(target["user"], target.get("password", ""))
            client.send_message(mail)


def mail_server(text: str) -> tuple[str, int]:
    """Return host and port of `host` or `host:port`; default 587."""
    host, _, port = text.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host) or not (not port or port.isdecimal()):
        raise NotDelivered(f"smtp '{text}' is not an address such as mail.lab.org:587")
    return host, int(port or 587)


def _default_sender() -> str:
    import getpass
    import socket

    return f"{getpass.getuser()}@{socket.getfqdn()}"


def _send_by_apprise(url: str, message: Message) -> None:
    """Pass a message to one of the services that Apprise knows."""
    try:
        import apprise
    except ImportError:
        raise NotDelivered("Apprise is not installed: pip install 'stoker[notify]'") from None
    service, text = apprise.Apprise(), plain_text(message).partition("\n")[2]
    if not service.add(url):
        raise NotDelivered("its url is none that Apprise knows")
    kind = apprise.NotifyType.FAILURE if message.event == "fail" else apprise.NotifyType.INFO
    if not service.notify(body=text or message.title, title=message.title, notify_type=kind):
        raise NotDelivered("Apprise could not deliver it")


# -- programs -----------------------------------------------------------------------------


def _environment(message: Message) -> dict[str, str]:
    """Return what a command is given: STOKER_EVENT, STOKER_TITLE, STOKER_TEXT and the facts."""
    values: dict[str, Any] = {
        "event": message.event, "title": message.title, "text": plain_text(message),
        "command": message.command, **message.facts,
    }  # fmt: skip
    return {
        f"STOKER_{key.upper()}": "" if value is None else str(value)
        for key, value in values.items()
    }


def _run(
    argv: list[str], seconds: float, environment: dict[str, str] | None = None, data: bytes = b""
) -> None:
    name = os.path.basename(argv[0]) if argv[0] != "/bin/sh" else "its command"
    try:
        done = subprocess.run(
            argv, input=data, capture_output=True, timeout=seconds, check=False,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
    except FileNotFoundError:
        raise NotDelivered(f"there is no {name}") from None
    except subprocess.TimeoutExpired:
        raise NotDelivered(f"{name} has run for {seconds:.0f} s") from None
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()[-200:]
        raise NotDelivered(f"{name} ended with code {done.returncode}{words and ': '}{words}")


if __name__ == "__main__":
    main()
