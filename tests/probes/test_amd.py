from pathlib import Path

import pytest

from stoker.probes import amd
from stoker.probes.gpu_reading import GpuProcess, Reading

GIB = 1 << 30


def make_card(sys: Path, name: str, pci: str, vendor: str = "0x1002", **files: str) -> Path:
    device = sys / "devices/pci0000:00" / pci
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    for file, text in files.items():
        (device / file).write_text(text + "\n")
    card = sys / "class/drm" / name
    card.mkdir(parents=True)
    (card / "device").symlink_to(device)
    return device


@pytest.fixture
def sys(tmp_path):
    return tmp_path / "sys"


def test_a_machine_without_graphics_has_no_gpus(sys):
    assert amd.read(str(sys)) == Reading()


def test_a_card_is_read_with_all_its_fields(sys):
    device = make_card(
        sys,
        "card1",
        "0000:03:00.0",
        unique_id="9a1b2c3d4e5f6071",
        product_name="Instinct MI210",
        mem_info_vram_total=str(64 * GIB),
        mem_info_vram_used=str(3 * GIB),
        gpu_busy_percent="42",
    )
    monitor = device / "hwmon/hwmon3"
    monitor.mkdir(parents=True)
    (monitor / "temp1_input").write_text("51000\n")
    (monitor / "power1_average").write_text("41500000\n")
    (sys / "class/drm/card1-DP-1").mkdir()
    reading = amd.read(str(sys))
    (facts,), (use,) = reading.facts, reading.use
    assert (facts.index, facts.uuid, facts.model) == (0, "GPU-9a1b2c3d4e5f6071", "Instinct MI210")
    assert (facts.memory, facts.vendor) == (65536, "amd")
    assert (use.memory_used, use.utilization, use.temperature, use.power) == (3072, 42, 51, 41.5)
    assert (use.processes, use.processes_known) == ((), False)


def test_cards_are_numbered_by_pci_address_and_other_vendors_left_out(sys):
    make_card(sys, "card0", "0000:83:00.0", unique_id="0x0")
    make_card(sys, "card1", "0000:03:00.0", unique_id="0x0")
    make_card(sys, "card2", "0000:01:00.0", vendor="0x10de")
    reading = amd.read(str(sys))
    assert [gpu.uuid for gpu in reading.facts] == ["0000:03:00.0", "0000:83:00.0"]
    assert [gpu.index for gpu in reading.facts] == [0, 1]


def test_a_card_without_an_id_is_known_by_its_slot_and_missing_fields_are_none(sys):
    make_card(sys, "card0", "0000:03:00.0", unique_id="0x0", gpu_busy_percent="what")
    reading = amd.read(str(sys))
    (facts,), (use,) = reading.facts, reading.use
    assert (facts.uuid, facts.model, facts.memory) == ("0000:03:00.0", "AMD GPU", None)
    assert (use.memory_used, use.utilization, use.temperature, use.power) == (None,) * 4


def test_compute_processes_are_listed_on_the_gpu_that_has_their_memory(sys):
    make_card(sys, "card0", "0000:03:00.0")
    make_card(sys, "card1", "0000:83:00.0")
    kfd = sys / "class/kfd/kfd"
    nodes = {"0": ("0", 0), "1": ("111", 0x0300), "2": ("222", 0x8300)}
    for node, (gpu_id, place) in nodes.items():
        directory = kfd / "topology/nodes" / node
        directory.mkdir(parents=True)
        (directory / "gpu_id").write_text(gpu_id + "\n")
        (directory / "properties").write_text(f"cpu_cores_count 0\nlocation_id {place}\ndomain 0\n")
    process = kfd / "proc/4242"
    process.mkdir(parents=True)
    (process / "vram_111").write_text("0\n")
    (process / "vram_222").write_text(f"{2 * GIB}\n")
    first, second = amd.read(str(sys)).use
    assert (first.processes, first.processes_known) == ((), True)
    assert second.processes == (GpuProcess(pid=4242, memory=2048),)
