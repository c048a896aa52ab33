"""Training reports over HTTP from the pods of a job of several nodes."""

from pathlib import Path

import pytest

from daemon.reports.report_server import ATTEMPT, ReportServer
from stoker.core import events as e
from stoker.core.model.job import Progress
from stoker.executors.report_tokens import ReportSource
from stoker.training.reports.http_sender import Refused, Sender
from stoker.training.runtime.stop_protocol import RELAY_SECONDS

EPOCH = b'{"k":"hello","v":1}\n{"k":"start","e":0,"t":1010}\n{"k":"start","e":1,"t":1015}\n'
STOP_AT = b'{"k":"stop_at","e":5,"t":1016}\n'


@pytest.fixture
def senders(server: ReportServer, tmp_path: Path) -> list[Sender]:
    """The senders of two pods, by rank."""
    made = []
    for rank, words in enumerate(server.start_parts(2)):
        (tmp_path / f"pod{rank}").mkdir()
        made.append(Sender(str(tmp_path / f"pod{rank}"), *words))
    return made


def append(sender: Sender, data: bytes) -> None:
    with Path(sender.directory, "report").open("ab") as file:
        file.write(data)


def files(sender: Sender) -> dict[str, str]:
    """Return the control files of a pod."""
    paths = (Path(sender.directory, name) for name in ("stop", "stop_at"))
    return {path.name: path.read_text() for path in paths if path.exists()}


def test_each_pod_has_the_token_of_its_part(server: ReportServer, senders: list[Sender]) -> None:
    sources = [server.tokens.check(sender.token) for sender in senders]
    assert sources == [ReportSource(ATTEMPT, rank) for rank in range(2)]


def test_the_report_is_that_of_the_first_part(server: ReportServer, senders: list[Sender]) -> None:
    append(senders[1], EPOCH)
    senders[1].exchange()
    assert server.box.run_turn() == []
    assert not (server.base / "series").exists()
    assert Path(senders[1].directory, ".http").read_text() == f"{len(EPOCH)}\n"
    append(senders[0], EPOCH)
    senders[0].exchange()
    assert [event.done for event in server.box.run_turn() if isinstance(event, e.EpochsCounted)]


def test_the_stop_epoch_of_the_first_part_reaches_the_others(
    server: ReportServer, senders: list[Sender]
) -> None:
    first, second = senders
    append(first, EPOCH)
    for sender in senders:
        sender.exchange()
    server.box.job.progress = Progress(accepts_stop=True)
    server.box.monitor.stops.send(7, 0)
    for sender in senders:
        sender.exchange()
    assert (files(first), files(second)) == ({"stop": "asked to stop"}, {})
    append(first, STOP_AT)
    first.exchange()
    server.box.run_turn()
    for sender in (*senders, *senders):
        sender.exchange()
    assert (files(first), files(second)) == ({"stop": "asked to stop"}, {"stop_at": "5"})
    server.now = 1000.0
    server.reactor.run_timers()
    assert server.api.commands == []


def test_files_for_the_barrier_are_not_sent_over_http(
    server: ReportServer, senders: list[Sender]
) -> None:
    senders[1].exchange()
    server.executor.release(ATTEMPT, 1, {"A": "1"})
    (command,) = server.api.commands
    assert command[-2:] == [".go", "export A=1\n"]


def test_what_one_part_has_fetched_is_not_forgotten_for_another(
    server: ReportServer, senders: list[Sender]
) -> None:
    for sender in senders:
        sender.exchange()
    for rank in range(2):
        server.executor.send_control(ATTEMPT, rank, "stop_at", "5")
    for _ in range(2):
        senders[0].exchange()
    assert files(senders[1]) == {}
    server.now = 10.0
    server.reactor.run_timers()
    (command,) = server.api.commands
    assert command[-2:] == ["stop_at", "5"]
    assert any(word.endswith("-7-0-1") for word in command)


def test_a_stop_epoch_arrives_in_time_however_many_jobs_run(
    server: ReportServer, senders: list[Sender]
) -> None:
    """The first part reports it, and another one fetches it or gets it by a command."""
    server.box.state.running.update(dict.fromkeys(range(100, 3100), server.box.job))
    waits = [sender.exchange() for sender in senders]
    server.executor.send_control(ATTEMPT, 1, "stop_at", "5")
    server.now = RELAY_SECONDS - waits[0] - 1.0
    server.reactor.run_timers()
    assert len(server.api.commands) == 1


def test_a_part_that_the_job_does_not_have_is_refused(
    server: ReportServer, senders: list[Sender]
) -> None:
    senders[1].token = server.token(rank=2)
    with pytest.raises(Refused):
        senders[1].exchange()
