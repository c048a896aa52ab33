"""Training reports over HTTP: the sender of the training library at a port of the daemon."""

import http.client
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.reports.report_server import ATTEMPT, ReportServer
from e2e.daemon_fixture import until
from stoker.core import events as e
from stoker.core.model.job import AttemptId
from stoker.daemon.routes.report_rates import BURST, ReportRates
from stoker.training.reports import http_sender
from stoker.training.reports.http_sender import AWAY_SECONDS, MAX_BYTES, Refused, Sender

START = b'{"k":"hello","v":1}\n{"k":"start","e":0,"t":1010}\n{"k":"end","e":0,"d":5.0,"t":1015}\n'
NEXT = b'{"k":"start","e":1,"t":1015}\n'


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    """The report directory of the pod."""
    path = tmp_path / "pod"
    path.mkdir()
    return path


@pytest.fixture
def sender(server: ReportServer, pod: Path) -> Sender:
    return Sender(str(pod), *server.start())


def append(pod: Path, data: bytes) -> None:
    with (pod / "report").open("ab") as file:
        file.write(data)


def epochs(events: list[e.Event]) -> list[int]:
    return [event.done for event in events if isinstance(event, e.EpochsCounted)]


def post(server: ReportServer, token: str, data: bytes = b"", **more: str) -> tuple[int, Any]:
    """Make a request as any program in the cluster can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(server.address, timeout=10, context=context)
    headers = {"Authorization": f"Bearer {token}", **more}
    connection.request("POST", "/v1/report?offset=0", data, headers)
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return response.status, body


def test_what_was_published_is_confirmed(server: ReportServer, sender: Sender, pod: Path) -> None:
    append(pod, START + NEXT + b'{"k":"end"')
    assert sender.exchange() == 1.0
    assert (pod / ".http").read_text() == "0\n", "no event is in the journal yet"
    assert epochs(server.box.run_turn()) == [1]
    sender.exchange()
    assert (pod / ".http").read_text() == f"{len(START + NEXT)}\n"
    assert (server.base / "series/7.0").read_bytes() == START + NEXT


def test_what_is_not_in_the_journal_is_not_confirmed(
    server: ReportServer, sender: Sender, pod: Path
) -> None:
    append(pod, START)
    sender.exchange()
    server.box.run_turn()
    server.is_recorded = False
    sender.exchange()
    assert (pod / ".http").read_text() == "0\n"


def test_a_stop_request_arrives_without_a_command_in_the_pod(
    server: ReportServer, sender: Sender, pod: Path
) -> None:
    sender.exchange()
    server.executor.send_control(ATTEMPT, 0, "stop", "job 9 needs the GPU")
    sender.exchange()
    assert (pod / "stop").read_text() == "job 9 needs the GPU"
    sender.exchange()
    server.now = 1000.0
    server.reactor.run_timers()
    assert server.api.commands == []


def test_a_stop_request_is_sent_by_a_command_if_nothing_fetches_it(
    server: ReportServer, sender: Sender
) -> None:
    sender.exchange()
    server.executor.send_control(ATTEMPT, 0, "stop", "why")
    assert server.api.commands == []
    server.now = 7.5
    server.reactor.run_timers()
    (command,) = server.api.commands
    assert command[-2:] == ["stop", "why"]


def test_a_later_stop_request_is_not_taken_for_an_earlier_one(
    server: ReportServer, sender: Sender, pod: Path
) -> None:
    sender.exchange()
    for text in ("first", "second"):
        server.executor.send_control(ATTEMPT, 0, "stop_at", text)
        sender.exchange()
        sender.exchange()
        assert (pod / "stop_at").read_text() == text


def test_a_later_daemon_gets_the_whole_report_and_counts_nothing_twice(
    server: ReportServer, sender: Sender, pod: Path
) -> None:
    append(pod, START + NEXT)
    sender.exchange()
    assert epochs(server.box.run_turn()) == [1]
    server.restart()
    append(pod, b'{"k":"end","e":1}\n{"k":"start","e":2}\n')
    sender.exchange()  # with what is new, which the daemon cannot use yet
    sender.exchange()
    assert epochs(server.box.run_turn()) == [2]
    assert (server.base / "series/7.0").read_bytes() == (pod / "report").read_bytes()


def test_a_later_daemon_can_begin_with_lines_of_the_log(server: ReportServer) -> None:
    """Those before them were confirmed over HTTP, and are in no log."""
    server.start()
    server.box.monitor.on_report_data(ATTEMPT, None, NEXT, len(START))
    assert epochs(server.box.run_turn()) == [1]


@pytest.mark.parametrize("what", ["forged", "other", "old", "user"])
def test_a_wrong_token_changes_nothing(
    server: ReportServer, sender: Sender, pod: Path, what: str
) -> None:
    right = sender.token
    append(pod, START + NEXT)
    sender.token = {
        "forged": right[:-1] + ("0" if right[-1] != "0" else "1"),
        "other": server.token(AttemptId(8, 0)),
        "old": right,
        "user": (server.state_dir / "token").read_text(),
    }[what]
    server.box.job.attempt = 1 if what == "old" else 0
    with pytest.raises(Refused):
        sender.exchange()
    assert not (pod / ".http").exists()
    assert server.box.run_turn() == []
    assert not (server.base / "series").exists()
    assert post(server, sender.token)[0] == 401


def test_a_token_gives_access_to_reports_only(server: ReportServer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(server.address, timeout=10, context=context)
    connection.request("GET", "/v1/jobs", headers={"Authorization": f"Bearer {server.token()}"})
    assert connection.getresponse().status == 401
    connection.close()


def test_a_request_that_is_too_large_is_refused(server: ReportServer) -> None:
    status, body = post(server, server.start()[2], bytes(MAX_BYTES + 1))
    assert (status, body["error"]["code"]) == (413, "too_large")


def test_a_sender_that_is_too_fast_waits(server: ReportServer, sender: Sender) -> None:
    server.report_rates = ReportRates(lambda: 0.0)
    waits = [sender.exchange() for _ in range(BURST + 1)]
    assert waits == [1.0] * BURST + [5.0]


def test_the_token_is_sent_to_no_other_server(server: ReportServer, pod: Path) -> None:
    address, fingerprint, token = server.start()
    sender = Sender(str(pod), address, fingerprint[:-1] + "x", token)
    append(pod, START + NEXT)
    sender.exchange()
    assert server.box.run_turn() == []
    assert not (pod / ".http").exists()


def test_the_log_is_used_while_the_daemon_is_away(
    server: ReportServer, sender: Sender, pod: Path
) -> None:
    sender.exchange()
    server.close()
    assert sender.exchange() == 1.0
    assert (pod / ".http").exists()
    sender._answered_at -= AWAY_SECONDS
    assert [sender.exchange() for _ in range(6)] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert not (pod / ".http").exists()


def test_a_long_report_is_sent_in_pieces(server: ReportServer, sender: Sender, pod: Path) -> None:
    line = b'{"k":"metrics","e":0,"v":{"loss":0.5}}\n'
    append(pod, START + line * (MAX_BYTES // len(line)) + NEXT)
    assert sender.exchange() == 0.5
    sender.exchange()
    assert epochs(server.box.run_turn()) == [1]


def test_the_key_of_the_tokens_is_private(server: ReportServer) -> None:
    server.token()
    path = server.state_dir / "report-key"
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert path.read_text() not in server.token()


def test_the_sender_is_a_program_that_signals_do_not_end(server: ReportServer, pod: Path) -> None:
    append(pod, START + NEXT)
    argv = [sys.executable, "-I", "-S", http_sender.__file__, str(pod)]
    environment = {http_sender.VARIABLE: " ".join(server.start())}
    with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE) as process:
        until((pod / ".http").exists)
        process.terminate()
        assert epochs(server.box.run_turn()) == [1]
        until(lambda: (pod / ".http").read_text() == f"{len(START + NEXT)}\n")
        server.box.job.attempt = 1
        assert process.wait(30) == 0, "nothing is taken from it any more"
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("parts", [1, 2])
def test_the_directory_of_checkpoints_exists_before_a_pod_mounts_it(
    server: ReportServer, parts: int
) -> None:
    server.start_parts(parts)
    assert (server.base / "checkpoints").is_dir()
