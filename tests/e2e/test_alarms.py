"""An alarm from the driver to the streams and a notification, through a killed daemon."""

import json
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
