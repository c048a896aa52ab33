"""Deliveries to real servers on this machine: HTTP, TLS, SMTP, programs."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from stoker.daemon.notifications import notifier, send
from stoker.daemon.notifications.formats import plain_text
from stoker.daemon.notifications.message import Delivery, Message, SendJob

MESSAGE = Message(
    key="end/42/0", event="fail", title="job 42 train <b>@everyone</b> FAILED",
    lines=["exit code 1"], log=["Traceback"], command="stoker retry 42",
    facts={"job_id": "42", "state": "FAILED", "code": 1, "cause": None},
)  # fmt: skip


class Server:
    """An HTTP server that replies with one status, and its requests."""

    def __init__(self, status: int = 200, **headers: str) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                names = {name.lower(): value for name, value in self.headers.items()}
                server.requests.append((self.path, names, body))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hooks/SECRET-TOKEN"
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()


def deliver(**target: str) -> str | None:
    return send.deliver(SendJob(target=target, message=MESSAGE, idempotency_key="box-7"))


# -- HTTP ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Apprise itself
def test_services_of_apprise() -> None:
    with Server() as server:
        url = f"json://127.0.0.1:{server.port}/hook"
        assert deliver(kind="apprise", url=url) is None
    ((path, _, body),) = server.requests
    sent = json.loads(body)
    assert (path, sent["title"], sent["type"]) == ("/hook", MESSAGE.title, "failure")
    assert "stoker retry 42" in sent["message"]
    assert deliver(kind="apprise", url="nothing://SECRET-PLACE") == (
        "its url is none that Apprise knows"
    )
    assert deliver(kind="apprise", url=url) == "Apprise could not deliver it"


def test_a_webhook_gets_signed_json_with_a_key() -> None:
    with Server() as server:
        assert deliver(kind="webhook", url=server.url, secret="pepper") is None
    ((path, headers, body),) = server.requests
    assert path == "/hooks/SECRET-TOKEN"
    digest = hmac.new(b"pepper", body, hashlib.sha256).hexdigest()
    assert headers["stoker-signature"] == f"sha256={digest}"
    assert headers["idempotency-key"] == "box-7"
    sent = json.loads(body)
    assert (sent["event"], sent["job_id"], sent["code"]) == ("fail", "42", 1)
    assert sent["log"] == ["Traceback"]


@pytest.mark.parametrize("kind", ["slack", "discord", "teams", "mattermost", "telegram"])
def test_chats_get_text_that_names_no_users(kind: str) -> None:
    with Server() as server:
        assert deliver(kind=kind, url=server.url, to="-100", token="t") is None
    ((_, headers, body),) = server.requests
    sent = json.loads(body)
    text = sent.get("content") or sent["text"]
    assert "exit code 1" in text
    assert "stoker retry 42" in text
    assert headers["content-type"] == "application/json"
    if kind == "slack":
        assert "<b>" not in text
    if kind == "discord":
        assert sent["allowed_mentions"] == {"parse": []}
    if kind == "telegram":
        assert sent["chat_id"] == "-100"


def test_ntfy_gets_title_and_priority_as_headers() -> None:
    with Server() as server:
        assert deliver(kind="ntfy", url=server.url, token="tk") is None
    ((_, headers, body),) = server.requests
    assert headers["title"].startswith("job 42 train")
    assert (headers["priority"], headers["authorization"]) == ("high", "Bearer tk")
    assert body.decode() == plain_text(MESSAGE)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_other_replies_are_errors_without_the_address(status: int) -> None:
    with Server(status) as server:
        error = deliver(kind="slack", url=server.url)
    assert error is not None
    assert str(status) in error
    assert "SECRET" not in error


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with Server() as other, Server(status, Location=other.url) as server:
        error = deliver(kind="webhook", url=server.url)
    assert error is not None
    assert "redirects to 127.0.0.1" in error
    assert "SECRET" not in error
    assert other.requests == []


def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = deliver(kind="webhook", url=f"http://127.0.0.1:{listener.getsockname()[1]}/x")
    assert error == "127.0.0.1 has not answered for 0 s"


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "refused" in str(deliver(kind="webhook", url=f"http://127.0.0.1:{port}/x"))


def test_a_reply_that_is_not_http_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            peer.sendall(b"hello\r\n\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        error = deliver(kind="webhook", url=f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        thread.join()
    assert error is not None


@pytest.mark.parametrize("url", ["", "ftp://host/x", "elsewhere", "http://"])
def test_addresses_that_cannot_be_used(url: str) -> None:
    assert "not an address" in str(deliver(kind="webhook", url=url))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-keyout", path, "-out", f"{path}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


def test_a_certificate_of_no_known_authority_is_an_error(certificate: Path) -> None:
    server = Server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    with server:
        error = deliver(kind="webhook", url=f"https://127.0.0.1:{server.port}/SECRET-TOKEN")
    assert error is not None
    assert error.startswith("127.0.0.1: TLS: ")
    assert server.requests == []


# -- secrets ------------------------------------------------------------------------------


def test_secrets_come_from_variables_files_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server() as server:
        monkeypatch.setenv("HOOK", server.url)
        (tmp_path / "hook").write_text(server.url + "\n")
        for url in ("env:HOOK", f"file:{tmp_path}/hook", f"cmd:echo {server.url}"):
            assert deliver(kind="webhook", url=url) is None
    assert len(server.requests) == 3


@pytest.mark.parametrize("url", ["env:NO_SUCH_VARIABLE", "file:/no/such/file", "cmd:exit 3"])
def test_secrets_that_are_missing_are_named(url: str) -> None:
    assert str(deliver(kind="webhook", url=url)).startswith("url: ")


# -- e-mail -------------------------------------------------------------------------------


class MailServer:
    """Takes one connection and keeps what it is sent."""

    def __init__(self, *features: str, reply: str = "250 ok") -> None:
        self.features, self.reply = features, reply
        self.lines: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        peer, _ = self.listener.accept()
        with peer, peer.makefile("rwb") as stream:

            def say(text: str) -> None:
                stream.write(text.encode() + b"\r\n")
                stream.flush()

            say("220 mail")
            has_data = False
            for raw in stream:
                line = raw.decode().rstrip("\r\n")
                self.lines.append(line)
                if has_data:
                    if line == ".":
                        has_data = False
                        say(self.reply)
                    continue
                verb = line.split(" ")[0].upper()
                if verb == "EHLO":
                    for feature in self.features:
                        say(f"250-{feature}")
                    say("250 8BITMIME")
                elif verb == "DATA":
                    has_data = True
                    say("354 go on")
                elif verb == "QUIT":
                    say("221 bye")
                    return
                else:
                    say("250 ok")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join(10)
        self.listener.close()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def test_mail_by_smtp() -> None:
    with MailServer() as server:
        error = deliver(kind="email", to="ana@lab.org, bo@lab.org", sender="s@lab.org",
                        smtp=server.address)  # fmt: skip
    assert error is None
    assert "MAIL FROM:<s@lab.org>" in server.text.upper().replace("S@LAB.ORG", "s@lab.org")
    assert "bo@lab.org" in server.text
    assert "Subject: stoker: job 42 train" in server.text
    assert "Message-ID: <box-7@stoker>" in server.text
    assert "Next: stoker retry 42" in server.text


def test_mail_that_is_rejected() -> None:
    with MailServer(reply="550 no") as server:
        error = deliver(kind="email", to="ana@lab.org", sender="s@lab.org", smtp=server.address)
    assert "550" in str(error)


def test_a_password_is_not_sent_without_tls() -> None:
    with MailServer("AUTH PLAIN") as server:
        error = deliver(kind="email", to="ana@lab.org", sender="s@lab.org", smtp=server.address,
                        user="ana", password="hunter2")  # fmt: skip
    assert "offers no TLS" in str(error)
    assert "hunter2" not in server.text


@pytest.mark.parametrize("to", ["ana@lab.org\nBcc: all@lab.org", "a" * 300 + "\r\nX: y"])
def test_addresses_with_further_headers_are_rejected(to: str) -> None:
    assert "not an e-mail address" in str(deliver(kind="email", to=to, sender="s@lab.org"))


def test_mail_by_sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/args\ncat > {tmp_path}/mail\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert deliver(kind="email", to="ana") is None
    assert (tmp_path / "args").read_text() == "-t -i\n"
    assert "To: ana\n" in (tmp_path / "mail").read_text()


# -- programs -----------------------------------------------------------------------------


def test_a_command_gets_the_message_as_variables(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f'echo "$STOKER_EVENT $STOKER_JOB_ID $STOKER_STATE [$STOKER_CAUSE]" > {out}'
    assert deliver(kind="command", command=command) is None
    assert out.read_text() == "fail 42 FAILED []\n"
    assert "code 3: no" in str(deliver(kind="command", command="echo no >&2; exit 3"))


def test_a_desktop_without_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert deliver(kind="desktop") == "there is no notify-send"
    program = tmp_path / "notify-send"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/args\n")
    program.chmod(0o755)
    assert deliver(kind="desktop") is None
    assert "critical\n--\njob 42" in (tmp_path / "args").read_text()


# -- the process of a delivery ------------------------------------------------------------


@contextmanager
def hanging_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"


def test_a_process_delivers_and_is_ended_when_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        job = SendJob(target={"kind": "webhook", "url": server.url}, message=MESSAGE)
        assert notifier.run_process(job) is None
    assert len(server.requests) == 1
    monkeypatch.setattr(notifier, "PROCESS_SECONDS", 1.0)
    with hanging_server() as url:
        begin = time.monotonic()
        job = SendJob(target={"kind": "webhook", "url": url}, message=MESSAGE)
        assert notifier.run_process(job) == "the delivery has taken 1 s"
        assert time.monotonic() - begin < 9


def test_several_messages_are_one() -> None:
    messages = [
        Message(key=f"end/{n}/0", event="fail", title=f"job {n} FAILED", lines=["oom"])
        for n in range(10)
    ]
    one = Delivery(batch=1, target="x", messages=messages, more=43).combined()
    assert one.title == "53 jobs failed"
    assert one.lines[0] == "job 0 FAILED: oom"
    assert one.lines[-1] == "and 43 more"
    assert Delivery(batch=1, target="x", messages=messages[:1]).combined() is messages[0]
