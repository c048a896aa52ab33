"""AMD GPUs from sysfs: no library, no privileges."""

from __future__ import annotations

import os
import re

from stoker.probes.gpu_reading import GpuFacts, GpuProcess, GpuUse, Reading

_MIB = 1 << 20
_CARD = re.compile(r"card\d+")
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read(root: str = "/sys") -> Reading:
    """Read all AMD GPUs, in the order of their PCI addresses."""
    cards = sorted(_cards(root))
    computing = _processes(root)
    gpus, use = [], []
    for index, (pci, device) in enumerate(cards):
        gpus.append(_gpu_facts(index, pci, device))
        use.append(_use(gpus[-1].uuid, pci, device, computing))
    return Reading(facts=tuple(gpus), use=tuple(use))


def _cards(root: str) -> list[tuple[str, str]]:
    """Return the PCI address and device directory of every AMD card."""
    drm = os.path.join(root, "class/drm")
    try:
        names = os.listdir(drm)
    except OSError:
        return []
    cards = []
    for name in names:
        device = os.path.join(drm, name, "device")
        # `card0-DP-1` is a socket for a monitor, not a card.
        if _CARD.fullmatch(name) and _text(device, "vendor") == "0x1002":
            cards.append((_pci(device) or name, device))
    return cards


def _pci(device: str) -> str | None:
    for line in (_text(device, "uevent") or "").splitlines():
        if line.startswith("PCI_SLOT_NAME="):
            return line.partition("=")[2].lower()
    name = os.path.basename(os.path.realpath(device))
    return name if _PCI.fullmatch(name) else None


def _gpu_facts(index: int, pci: str, device: str) -> GpuFacts:
    total = _number(device, "mem_info_vram_total")
    unique = _text(device, "unique_id")
    return GpuFacts(
        index=index,
        # ROCm accepts this name, too (ROCR_VISIBLE_DEVICES); consumer cards have no id.
        uuid=f"GPU-{unique.removeprefix('0x')}" if unique and unique.strip("0x") else pci,
        model=_text(device, "product_name") or f"AMD GPU {_text(device, 'device') or ''}".strip(),
        memory=total // _MIB if total else None,
        vendor="amd",
    )


def _use(uuid: str, pci: str, device: str, computing: dict[str, list[GpuProcess]] | None) -> GpuUse:
    used = _number(device, "mem_info_vram_used")
    busy = _number(device, "gpu_busy_percent")
    milli = _sensor(device, "temp1_input")
    # Newer drivers measure an instant, older ones an average; both in microwatts.
    micro = _sensor(device, "power1_average")
    if micro is None:
        micro = _sensor(device, "power1_input")
    return GpuUse(
        uuid=uuid,
        memory_used=used // _MIB if used is not None else None,
        utilization=busy if busy is not None and 0 <= busy <= 100 else None,
        temperature=milli // 1000 if milli is not None else None,
        power=micro / 1_000_000 if micro is not None else None,
        processes=tuple(computing.get(pci, ())) if computing is not None else (),
        processes_known=computing is not None,
    )


def _processes(root: str) -> dict[str, list[GpuProcess]] | None:
    """Return the compute processes by PCI address; None without the compute driver (kfd).

    kfd lists those of all users, /proc/*/fdinfo only those of this user.
    """
    kfd = os.path.join(root, "class/kfd/kfd")
    try:
        pids = [name for name in os.listdir(os.path.join(kfd, "proc")) if name.isdecimal()]
    except OSError:
        return None
    gpus = _compute_nodes(kfd)
    processes: dict[str, list[GpuProcess]] = {}
    for pid in sorted(pids, key=int):
        for gpu_id, pci in gpus.items():
            # Every process has an entry for every GPU; only one with memory there uses it.
            used = _number(os.path.join(kfd, "proc", pid), f"vram_{gpu_id}")
            if used:
                process = GpuProcess(pid=int(pid), memory=used // _MIB)
                processes.setdefault(pci, []).append(process)
    return processes


def _compute_nodes(kfd: str) -> dict[str, str]:
    """Return the PCI address of each GPU by the number that kfd gives it."""
    nodes = os.path.join(kfd, "topology/nodes")
    try:
        names = os.listdir(nodes)
    except OSError:
        return {}
    gpus = {}
    for name in names:
        node = os.path.join(nodes, name)
        gpu_id = _text(node, "gpu_id")
        if not gpu_id or gpu_id == "0":  # a processor
            continue
        properties = dict(
            line.split(maxsplit=1)
            for line in (_text(node, "properties") or "").splitlines()
            if len(line.split()) == 2
        )
        try:
            location, domain = int(properties["location_id"]), int(properties.get("domain", "0"))
        except (KeyError, ValueError):
            continue
        bus, device, function = location >> 8 & 255, location >> 3 & 31, location & 7
        gpus[gpu_id] = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    return gpus


def _sensor(device: str, name: str) -> int | None:
    try:
        monitors = sorted(os.listdir(os.path.join(device, "hwmon")))
    except OSError:
        return None
    for monitor in monitors:
        value = _number(os.path.join(device, "hwmon", monitor), name)
        if value is not None:
            return value
    return None


def _number(directory: str, name: str) -> int | None:
    try:
        return int(_text(directory, name) or "")
    except ValueError:
        return None


def _text(directory: str, name: str) -> str | None:
    try:
        with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:  # missing, or not readable on this card
        return None
