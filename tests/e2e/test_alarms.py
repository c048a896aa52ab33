"""An alarm from the driver to the streams and a notification, through a killed daemon."""

import json
import socket
from pathlib import Path

from e2e.daemon_fixture import DaemonFixture, kill, until
from e2e.test_live import frames
from fakes.nvml import FakeNvml, Gpu


def test_an_unused_gpu(home: Path, idle: DaemonFixture, nvml: FakeNvml) -> None:
    out = home / "messages"
    (home / "config.toml").write_text(
        f"""
        [alarms]
        unused = "1s"
        [notify.file]
        kind = "command"
        command = 'echo "$STOKER_EVENT $STOKER_TITLE" >> {out}'
        on = ["start", "alarm"]
        """
    )
    nvml.set([Gpu(uuid="GPU-1", pci="0000:01:00.0", slowdown=90)])
    done = idle.stoker("daemon", "start", env=nvml.env())
    assert done.returncode == 0, done.stderr
    job = int(idle.submit("--gpus", "1", "--name", "train", "sleep", "300"))

    alarms = until(lambda: idle.client.alarms()["alarms"], 60)
    assert [(alarm["kind"], alarm["job"], alarm["gpu"]) for alarm in alarms] == [
        ("gpu_unused", job, "0")
    ]
    event, data = next(frame for frame in frames("alarms") if frame[0] == "alarms")
    assert (event, data["alarms"]) == ("alarms", alarms)
    assert "(unused " in idle.stoker("queue").stdout
    assert "unused for" in idle.stoker("why", str(job)).stdout

    kill(int(json.loads(idle.stoker("daemon", "status", "--json").stdout)["pid"]))
    done = idle.stoker("daemon", "start", env=nvml.env())
    assert done.returncode == 0, done.stderr
    assert idle.client.alarms()["alarms"] == alarms
    assert idle.stoker("notify", "test", "file").returncode == 0
    idle.stoker("cancel", str(job))
    until(lambda: idle.client.alarms()["alarms"] == [])
    idle.stoker("daemon", "stop")  # sends what waits for other messages
    lines = out.read_text().splitlines()
    assert sorted(lines) == [
        f"alarm job {job} train: unused (GPU {alarms[0]['node']}/0)",
        f"start job {job} train started",
        "test test message of stoker",
    ]


def test_a_rule_outlives_a_killed_daemon_and_a_target_that_hangs(
    home: Path, idle: DaemonFixture
) -> None:
    out = home / "messages"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (home / "config.toml").write_text(
            f"""
            [notify.hang]
            kind = "webhook"
            url = "http://127.0.0.1:{silent.getsockname()[1]}/"
            on = ["end"]
            [notify.file]
            kind = "command"
            command = 'echo "$STOKER_TITLE" >> {out}'
            """
        )
        assert idle.stoker("daemon", "start").returncode == 0
        other, job = int(idle.submit("--hold", "false")), int(idle.submit("--hold", "false"))
        done = idle.stoker("notify", "file", "--when", f"job {job} done")
        assert done.stderr == f"stoker: rule 1: file when job {job} done\n"
        idle.stoker("release", str(other), str(job))
        idle.becomes(str(other), "FAILED")
        idle.becomes(str(job), "FAILED")
        # Failures wait for others like them, so that none was delivered.
        kill(int(json.loads(idle.stoker("daemon", "status", "--json").stdout)["pid"]))
        assert not out.exists()
        assert idle.stoker("daemon", "start").returncode == 0
        idle.stoker("daemon", "stop")
    assert out.read_text().splitlines() == [f"job {job} false FAILED"]
