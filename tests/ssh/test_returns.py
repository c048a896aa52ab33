"""What comes back, and what goes out, when daemons, machines and directories do not hold still."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.box import Box, until
from ssh.lab import Lab
from ssh.machine import Machine
from ssh.moves import HOLD, ONCE, add, bytes_of, let_go, on, ran, stands

Field = tuple[Box, Lab]


# -- results ----------------------------------------------------------------------------


def test_what_ends_while_no_daemon_is_there_is_brought_by_the_next(field: Field) -> None:
    box, lab = field
    add(box, lab.a)
    for round in range(4):
        hold = f"until [ -e $HOME/go{round} ]; do sleep 0.02; done"
        job = on(box, lab.a, f"{hold}; echo {round} >r.{round}")
        box.becomes(job, "RUNNING")
        box.stoker("daemon", "stop")
        (lab.a.home / f"go{round}").touch()
        until(lambda: written_down(lab.a))
        box.up()
        assert box.end_of(job)["result"] == 0
        assert (box.user / f"r.{round}").read_text() == f"{round}\n"


def test_a_daemon_killed_again_and_again_brings_all_results(field: Field) -> None:
    box, lab = field
    add(box, lab.a)
    line = "sleep 0.$((STOKER_ARRAY_INDEX % 7)); echo $STOKER_ARRAY_INDEX >r.$STOKER_ARRAY_INDEX"
    jobs = box.submit("-w", "a", "--array", "0-39", "--wrap", line)
    for brought in (1, 8, 16, 24, 32):
        until(lambda least=brought: len(list(box.user.glob("r.*"))) >= least)
        box.crash()
        box.up()
    box.client.wait([jobs], timeout=60)
    assert {job["result"] for job in box.jobs(jobs)} == {0}
    assert [(box.user / f"r.{n}").read_text() for n in range(40)] == [f"{n}\n" for n in range(40)]


def written_down(machine: Machine) -> bool:
    """Whether the machine has an end on record."""
    exits = (machine.home / ".stoker/run").glob("*/*.exit")
    return any("exited" in path.read_text() for path in exits)


# -- inputs -----------------------------------------------------------------------------


def test_a_job_sees_its_files_as_they_were_when_it_was_submitted_or_later(field: Field) -> None:
    box, lab = field
    add(box, lab.a)
    said = []
    for round in range(10):
        (box.user / "config").write_text(f"lr={round}\n")
        said.append(box.stoker("run", "-w", "a", "cat config").stdout)
    assert said == [f"lr={round}\n" for round in range(10)]


@contextmanager
def restless(directory: Path) -> Iterator[None]:
    """Files come and go in a directory all the time."""
    over = threading.Event()

    def stir() -> None:
        for number in itertools.count():
            path = directory / f"tmp.{number}"
            path.write_bytes(b"x" * 5000)
            if over.wait(0.002):
                break
            path.unlink()

    thread = threading.Thread(target=stir)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_files_that_come_and_go_while_others_are_sent_fail_no_job(field: Field) -> None:
    box, lab = field
    bare = lab.machine("bare", bare=True)
    add(box, lab.a, bare)
    (box.user / "data").write_text("data\n")
    with restless(box.user):
        for machine in (lab.a, bare):
            for _ in range(8):
                job = on(box, machine, "cat data; exit 3", "--no-bring")
                end = box.end_of(job)
                assert (end["result"], bytes_of(box, job)) == (3, b"data\n"), end
