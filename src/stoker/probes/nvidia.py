"""NVIDIA GPUs through NVML. Only the helper process calls this: a sick driver hangs its caller."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from stoker.probes.gpu_reading import GpuFacts, GpuProcess, GpuUse, Reading, merge

T = TypeVar("T")

_MIB = 1 << 20
_NOT_AVAILABLE = 1 << 63
"""NVML marks a value that it does not know by all ones; nothing real comes near."""


class _SessionLost(Exception):
    """The driver went away under an open session: open a new one."""


class Nvml:
    """An NVML session that stays open between reads, and is opened anew when the driver returns."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._open = False
        self.outdated = False
        """The library in memory does not fit the driver (an upgrade): only a new process helps."""

    def read(self) -> Reading:
        """Look at all NVIDIA GPUs; never raises for what a driver can do wrong."""
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError:
                return Reading()
        try:
            return self._read_open()
        except _SessionLost:
            self.close()
        try:
            return self._read_open()
        except _SessionLost as lost:
            self.close()
            return Reading(error=f"the NVIDIA driver does not answer: {lost}")

    def close(self) -> None:
        """End the session; the next read opens another."""
        if self._open:
            self._open = False
            with suppress(self._nvml.NVMLError):  # the driver may be gone already
                self._nvml.nvmlShutdown()

    def _read_open(self) -> Reading:
        nvml = self._nvml
        if not self._open:
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                return self._not_opened(error)
            self._open, self.outdated = True, False
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise _SessionLost(str(error)) from error
        reading = merge(*(self._read_gpu(index) for index in range(count)))
        if reading.error:
            self.close()  # an open session would be in the way of resetting the sick GPU
        return reading

    def _not_opened(self, error: Any) -> Reading:
        nvml = self._nvml
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return Reading()  # no driver installed: simply no NVIDIA GPUs
        self.outdated = error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        if self.outdated:
            return Reading(
                error="the NVIDIA library and the loaded driver have different versions; "
                "reboot, or reload the driver"
            )
        if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return Reading(error="the NVIDIA driver is installed but not loaded")
        return Reading(error=f"the NVIDIA driver cannot be opened: {error}")

    def _read_gpu(self, index: int) -> Reading:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
            instances = self._mig_instances(handle)
            if instances is None:
                pairs = [self._whole(handle, index, uuid)]
            else:
                temperature = self._temperature(handle)
                pairs = []
                for instance in instances:
                    pair = self._instance(instance, handle, index, uuid, temperature)
                    if pair:
                        pairs.append(pair)
        except nvml.NVMLError as error:
            if error.value in {nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED}:
                raise _SessionLost(str(error)) from error
            # One sick GPU must not hide the others: it is named and left out.
            return Reading(error=f"GPU {index} cannot be read: {error}")
        return Reading(facts=tuple(facts for facts, _ in pairs), use=tuple(use for _, use in pairs))

    def _whole(self, handle: Any, index: int, uuid: str) -> tuple[GpuFacts, GpuUse]:
        nvml = self._nvml
        total, used = self._memory(handle)
        utilization = self._ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        processes = self._processes(handle)
        facts = GpuFacts(
            index=index,
            uuid=uuid,
            model=self._ask(lambda: str(nvml.nvmlDeviceGetName(handle))) or "NVIDIA GPU",
            memory=total,
            vendor="nvidia",
            pci=self._pci(handle),
        )
        use = GpuUse(
            uuid=uuid,
            memory_used=used,
            utilization=_percent(utilization),
            temperature=self._temperature(handle),
            power=power,
            processes=processes or (),
            processes_known=processes is not None,
        )
        return facts, use

    def _mig_instances(self, handle: Any) -> list[Any] | None:
        """Return the handles of a GPU's MIG instances; None when it is not in MIG mode."""
        nvml = self._nvml
        mode = self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        if mode != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        instances = []
        for place in range(self._ask(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            # Places are numbered with gaps: an empty one answers "not found".
            found = self._ask(partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place))
            if found is not None:
                instances.append(found)
        return instances

    def _instance(
        self, handle: Any, parent_handle: Any, index: int, parent: str, temperature: int | None
    ) -> tuple[GpuFacts, GpuUse] | None:
        nvml = self._nvml
        uuid = self._ask(lambda: str(nvml.nvmlDeviceGetUUID(handle)))
        if uuid is None:  # taken apart between listing and asking
            return None
        total, used = self._memory(handle)
        processes = self._processes(handle)
        facts = GpuFacts(
            index=index,
            uuid=uuid,
            model=self._ask(lambda: str(nvml.nvmlDeviceGetName(handle))) or "NVIDIA MIG",
            memory=total,
            vendor="nvidia",
            pci=self._pci(parent_handle),
            mig=True,
            parent=parent,
        )
        use = GpuUse(
            uuid=uuid,
            memory_used=used,
            utilization=None,  # NVML does not measure it per instance
            temperature=temperature,  # one chip, one temperature
            power=None,  # the board's, which a sum over instances would count several times
            processes=processes or (),
            processes_known=processes is not None,
        )
        return facts, use

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Ask for one field; None when this GPU or driver does not have it."""
        nvml = self._nvml
        try:
            return question()
        except nvml.NVMLError as error:
            if error.value in {
                nvml.NVML_ERROR_UNINITIALIZED,
                nvml.NVML_ERROR_DRIVER_NOT_LOADED,
                nvml.NVML_ERROR_GPU_IS_LOST,
                nvml.NVML_ERROR_RESET_REQUIRED,
            }:
                raise  # not about this field: the whole GPU, or the whole driver, is gone
            return None

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        """Return total and used MiB."""
        nvml = self._nvml
        # Version 2 leaves out what the driver keeps for itself: on a small GPU that share
        # alone would look like a stranger. Drivers before 510 have version 1 only.
        info = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
        if info is None:
            info = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        if info is None:
            return None, None
        return _mebibytes(info.total) or None, _mebibytes(info.used)

    def _temperature(self, handle: Any) -> int | None:
        nvml = self._nvml
        sensor = nvml.NVML_TEMPERATURE_GPU
        degrees = None
        if hasattr(nvml, "nvmlDeviceGetTemperatureV"):  # since driver 570
            degrees = self._ask(lambda: int(nvml.nvmlDeviceGetTemperatureV(handle, sensor)))
        if degrees is None:
            degrees = self._ask(lambda: int(nvml.nvmlDeviceGetTemperature(handle, sensor)))
        return degrees

    def _pci(self, handle: Any) -> str | None:
        """Return the PCI address as Linux writes it: `0000:3b:00.0`."""
        nvml = self._nvml
        info = self._ask(lambda: nvml.nvmlDeviceGetPciInfo(handle))
        if info is None:
            return None
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        """Return the processes on a GPU, computing and drawing; None when they are not told."""
        nvml = self._nvml
        computing = self._list(
            handle,
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetComputeRunningProcesses_v2,
        )
        drawing = self._list(
            handle,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
        )
        if computing is None:
            return None
        found: dict[int, GpuProcess] = {}
        for entries, graphics in ((computing, False), (drawing or [], True)):
            for entry in entries:
                known = found.get(entry.pid)
                sizes = [
                    size
                    for size in (_mebibytes(entry.usedGpuMemory), known.memory if known else None)
                    if size is not None
                ]
                # In both lists it is the same memory told twice, so the larger, not the sum.
                found[entry.pid] = GpuProcess(
                    pid=entry.pid, memory=max(sizes, default=None), graphics=graphics
                )
        return tuple(found[pid] for pid in sorted(found) if pid > 0)

    def _list(
        self, handle: Any, newest: Callable[[Any], list[Any]], older: Callable[[Any], list[Any]]
    ) -> list[Any] | None:
        entries = self._ask(lambda: newest(handle))
        if entries is None:
            # An old driver without this version, or the list grew while it was copied.
            entries = self._ask(lambda: older(handle))
        return entries if entries is not None else self._ask(lambda: newest(handle))


def _mebibytes(value: int | None) -> int | None:
    return None if value is None or value >= _NOT_AVAILABLE else value // _MIB


def _percent(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= 100 else None


_session = Nvml()


def read() -> Reading:
    """Look at all NVIDIA GPUs through this process's one session."""
    return _session.read()


def outdated() -> bool:
    """Tell whether this process must be replaced before the driver can be read again."""
    return _session.outdated
