"""The real helper process and the real nvidia-ml-py against the stand-in library."""

import os
import subprocess
import sys
from contextlib import closing

from fakes.nvml import FakeNvml, Gpu, Process, claims
from probes.probe_loop import ProbeLoop
from stoker.daemon.gpus.probe_client import read_once
from stoker.probes import node_devices
from stoker.probes.gpu_reading import GpuProcess, Reading

TIMEOUT = 30


def read(nvml: FakeNvml) -> Reading:
    return read_once(TIMEOUT, nvml.env())


def test_a_gpu_is_read_with_all_its_fields(nvml):
    nvml.set(
        [
            Gpu(
                uuid="GPU-a",
                name="NVIDIA A100",
                memory_total=40960,
                memory_used=512,
                utilization=37,
                temperature=61,
                power=123_500,
                pci="0000:3b:00.0",
                processes=(Process(pid=42, memory=400),),
            ),
            Gpu(uuid="GPU-b"),
        ]
    )
    reading = read(nvml)
    assert reading.error is None
    first, second = reading.facts
    assert (first.index, first.uuid, first.model) == (0, "GPU-a", "NVIDIA A100")
    assert (first.memory, first.vendor) == (40960, "nvidia")
    assert not first.mig
    assert (second.index, second.uuid) == (1, "GPU-b")
    use = reading.use[0]
    assert (use.memory_used, use.utilization, use.temperature, use.power) == (512, 37, 61, 123.5)
    assert use.processes == (GpuProcess(pid=42, memory=400),)
    assert use.processes_known


def test_device_files_are_those_that_the_driver_names(nvml):
    instance = Gpu(uuid="MIG-1")
    nvml.set([Gpu(uuid="GPU-a", minor=2, pci="0000:01:00.0"),
              Gpu(uuid="GPU-b", minor=0, pci="0000:02:00.0", mig=(instance,)),
              Gpu(uuid="GPU-c", pci="0000:03:00.0")])  # fmt: skip
    with closing(ProbeLoop(nvml.env())) as loop:
        facts = node_devices.gpus(loop.read().facts)
    assert [(gpu.name, gpu.nvidia_minor) for gpu in facts] == [("0", 2), ("MIG-1", 0), ("2", 2)]
    assert [gpu.minor for gpu in facts] == [2, 0, None]


def test_limits_errors_and_faults_of_a_gpu_are_read(nvml):
    gpus = [Gpu(uuid="GPU-a", slowdown=92, ecc=2, pci="0000:01:00.0"),
            Gpu(uuid="GPU-b", pci="0000:02:00.0")]  # fmt: skip
    nvml.set(gpus)
    with closing(ProbeLoop(nvml.env())) as loop:
        first, second = loop.read().use
        assert (first.slowdown, first.ecc_errors, first.xid) == (92, 2, None)
        assert (second.slowdown, second.ecc_errors, second.xid) == (None, None, None)
        nvml.set([gpus[0], Gpu(uuid="GPU-b", pci="0000:02:00.0", xid=79)])
        assert [use.xid for use in loop.read().use] == [None, 79]
        assert [use.xid for use in loop.read().use] == [None, 79]  # until the probe ends


def test_without_the_library_there_are_no_gpus(nvml, tmp_path):
    env = nvml.env()
    # A directory with a file of that name that cannot be loaded.
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    env["LD_LIBRARY_PATH"] = str(tmp_path)
    assert read_once(TIMEOUT, env) == Reading()


def test_a_driver_that_is_not_loaded_is_named(nvml):
    nvml.set(init_error=9)
    reading = read(nvml)
    assert reading.facts == ()
    assert reading.error == "the NVIDIA driver is installed but not loaded"


def test_a_driver_of_another_version_is_named(nvml):
    nvml.set(init_error=18)
    assert "different versions" in (read(nvml).error or "")


def test_every_field_that_is_not_supported_is_none(nvml):
    fields = ("memory", "utilization", "temperature", "power", "pci", "name", "compute", "mig")
    nvml.set([Gpu(uuid="GPU-a", not_supported=fields, processes=(Process(pid=42),))])
    reading = read(nvml)
    assert reading.error is None
    (facts,), (use,) = reading.facts, reading.use
    assert (facts.memory, facts.model) == (None, "NVIDIA GPU")
    assert (use.memory_used, use.utilization, use.temperature, use.power) == (None,) * 4
    assert (use.processes, use.processes_known) == ((), False)


def test_the_memory_of_an_old_driver_is_read_by_the_older_call(nvml):
    nvml.set([Gpu(uuid="GPU-a", memory_used=77, not_supported=("memory_v2",))])
    assert read(nvml).use[0].memory_used == 77


def test_values_that_are_not_available_are_none(nvml):
    processes = (Process(pid=42, memory=None),)
    nvml.set([Gpu(uuid="GPU-a", memory_total=None, memory_used=None, processes=processes)])
    reading = read(nvml)
    assert reading.facts[0].memory is None
    assert reading.use[0].memory_used is None
    assert reading.use[0].processes == (GpuProcess(pid=42, memory=None),)


def test_compute_and_graphics_processes_are_merged(nvml):
    processes = (
        Process(pid=7, memory=300),
        Process(pid=8, memory=50, graphics=True),
        Process(pid=9, memory=20),
        Process(pid=9, memory=20, graphics=True),
    )
    nvml.set([Gpu(uuid="GPU-a", processes=processes)])
    assert read(nvml).use[0].processes == (
        GpuProcess(pid=7, memory=300),
        GpuProcess(pid=8, memory=50, graphics=True),
        GpuProcess(pid=9, memory=20, graphics=True),
    )


def test_a_gpu_in_mig_mode_is_replaced_by_its_instances(nvml):
    instances = (
        Gpu(uuid="MIG-1", name="A100 MIG 3g.20gb", memory_total=20000, memory_used=5),
        Gpu(uuid="MIG-2", memory_total=5000, processes=(Process(pid=42, memory=1000),)),
    )
    nvml.set([Gpu(uuid="GPU-a", temperature=55, mig=instances), Gpu(uuid="GPU-b")])
    reading = read(nvml)
    assert reading.error is None
    assert [gpu.uuid for gpu in reading.facts] == ["MIG-1", "MIG-2", "GPU-b"]
    assert [gpu.index for gpu in reading.facts] == [0, 0, 1]
    assert [gpu.mig for gpu in reading.facts] == [True, True, False]
    assert [gpu.parent for gpu in reading.facts] == ["GPU-a", "GPU-a", None]
    assert [gpu.memory for gpu in reading.facts] == [20000, 5000, 8192]
    use = reading.use[1]
    assert use.processes == (GpuProcess(pid=42, memory=1000),)
    assert (use.utilization, use.power, use.temperature) == (None, None, 55)


def test_a_lost_gpu_is_named_and_the_others_are_read(nvml):
    nvml.set([Gpu(uuid="GPU-a"), Gpu(uuid="GPU-b", lost=True), Gpu(uuid="GPU-c", reset=True)])
    reading = read(nvml)
    assert [gpu.uuid for gpu in reading.facts] == ["GPU-a"]
    assert [use.uuid for use in reading.use] == ["GPU-a"]
    assert "GPU 1 cannot be read: GPU is lost" in (reading.error or "")
    assert "GPU 2 cannot be read: GPU requires restart" in (reading.error or "")


def test_processes_grow_shrink_and_end_between_two_readings(nvml, tmp_path):
    claims_dir = tmp_path / "claims"
    claims_dir.mkdir()
    nvml.set([Gpu(uuid="GPU-a", memory_used=50, claims=claims_dir)])
    probe = ProbeLoop(nvml.env())
    try:
        for size in (100, 4000, 30):
            (claims_dir / str(os.getpid())).write_text(str(size))
            (claims_dir / str(os.getppid())).write_text("7")
            (claims_dir / str(2**22 + 7)).write_text("900")  # no process has this pid
            (use,) = probe.read().use
            assert {process.pid: process.memory for process in use.processes} == {
                os.getpid(): size, os.getppid(): 7,
            }  # fmt: skip
            assert use.memory_used == 50 + size + 7
    finally:
        probe.close()


def test_the_stand_in_runs_out_of_memory_like_a_gpu(nvml, tmp_path):
    claims_dir = tmp_path / "claims"
    script = (
        "import sys, claims\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        f"        claims.claim({str(claims_dir)!r}, int(line), total=8192)\n"
        "        print('ok', flush=True)\n"
        "    except claims.OutOfMemoryError as error:\n"
        "        print(error, flush=True)\n"
    )
    command = [sys.executable, "-c", script]
    env = {**os.environ, "PYTHONPATH": os.path.dirname(claims.__file__)}

    def send(process, size):
        process.stdin.write(f"{size}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        assert send(first, 6000) == "ok"
        assert send(second, 3000).startswith("CUDA out of memory")
        nvml.set([Gpu(uuid="GPU-a", claims=claims_dir)])
        (use,) = read(nvml).use
        assert use.processes == (GpuProcess(pid=first.pid, memory=6000),)
        assert send(first, 100) == "ok"
        assert send(second, 8000) == "ok"
        first.stdin.close()
        second.stdin.close()
    assert read(nvml).use[0].processes == ()


def test_a_driver_that_vanishes_and_returns_is_found_again_by_the_same_process(nvml):
    gpus = [Gpu(uuid="GPU-a")]
    nvml.set(gpus)
    probe = ProbeLoop(nvml.env())
    try:
        assert probe.read().facts[0].uuid == "GPU-a"
        nvml.set(gpus, gone=True)
        missing = probe.read()
        assert missing.facts == ()
        assert "NVIDIA driver" in (missing.error or "")
        nvml.set(gpus)
        back = probe.read()
        assert (back.facts[0].uuid, back.error) == ("GPU-a", None)
        assert probe.pids == {probe.pid}
    finally:
        probe.close()


def test_a_lost_gpu_that_returns_is_read_again_by_the_same_process(nvml):
    nvml.set([Gpu(uuid="GPU-a", lost=True)])
    probe = ProbeLoop(nvml.env())
    try:
        assert "GPU is lost" in (probe.read().error or "")
        nvml.set([Gpu(uuid="GPU-a")])
        back = probe.read()
        assert (back.facts[0].uuid, back.error) == ("GPU-a", None)
    finally:
        probe.close()
