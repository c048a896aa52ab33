"""NVIDIA GPUs through NVML. Only the probe process calls this: a driver can block its caller."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_void_p, cast
from functools import partial
from typing import Any, TypeVar

from stoker.probes.gpu_reading import GpuFacts, GpuProcess, GpuUse, Reading, merge

T = TypeVar("T")

MAX_FAULTS = 64
"""Faults that are taken at one read."""
_MIB = 1 << 20
_NOT_AVAILABLE = 1 << 63
"""NVML marks an unknown value by all ones; no real value is that large."""


class _SessionLost(Exception):
    """The driver was unloaded under an open session: open a new one."""


class Nvml:
    """An NVML session that stays open between reads, and is reopened after a driver reload."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._open = False
        self.outdated = False
        """The loaded library does not match the driver (an upgrade): only a new process helps."""
        self._xids: dict[str, int] = {}
        """The last fault of each GPU, by UUID."""
        self._faults: Any = None
        """The driver's queue of faults; None if it has none."""
        self._names: dict[int | None, str] = {}
        """UUIDs by the addresses of handles."""

    def read(self) -> Reading:
        """Read all NVIDIA GPUs; errors of the driver are returned in the reading."""
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
            self._open, self._faults = False, None
            with suppress(self._nvml.NVMLError):  # the driver may be unloaded
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
        self._take_faults(count)
        reading = merge(*(self._read_gpu(index) for index in range(count)))
        if reading.error:
            self.close()  # an open session would prevent a reset of the failed GPU
        return reading

    def _take_faults(self, count: int) -> None:
        """Note the faults that the driver has reported since the last read."""
        nvml = self._nvml
        try:
            if self._faults is None:
                self._faults = nvml.nvmlEventSetCreate()
                for index in range(count):
                    self._listen_for_faults(index)
            for _ in range(MAX_FAULTS):
                fault = nvml.nvmlEventSetWait_v2(self._faults, 0)
                uuid = self._names.get(cast(fault.device, c_void_p).value)
                if uuid is not None:
                    self._xids[uuid] = int(fault.eventData)
        except nvml.NVMLError:
            return  # no more, or a driver without them

    def _listen_for_faults(self, index: int) -> None:
        nvml = self._nvml
        with suppress(nvml.NVMLError):  # a GPU that cannot report faults, or is lost
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            # A GPU that has fallen off the bus does not tell its UUID any more.
            self._names[cast(handle, c_void_p).value] = str(nvml.nvmlDeviceGetUUID(handle))
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._faults)

    def _not_opened(self, error: Any) -> Reading:
        nvml = self._nvml
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return Reading()  # no driver installed, so no NVIDIA GPUs
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
                pairs = [self._read_device(handle, handle, index, uuid)]
            else:
                pairs = [
                    self._read_device(instance, handle, index, instance_uuid, parent=uuid)
                    for instance in instances
                    if (instance_uuid := self._uuid(instance)) is not None
                ]
        except nvml.NVMLError as error:
            if error.value in {nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED}:
                raise _SessionLost(str(error)) from error
            # One failed GPU must not hide the others: report it and leave it out.
            return Reading(error=f"GPU {index} cannot be read: {error}")
        return Reading(facts=tuple(facts for facts, _ in pairs), use=tuple(use for _, use in pairs))

    def _uuid(self, instance: Any) -> str | None:
        """Return the UUID of a MIG instance; None if it was destroyed since it was listed."""
        return self._query(lambda: str(self._nvml.nvmlDeviceGetUUID(instance)))

    def _read_device(
        self, handle: Any, board: Any, index: int, uuid: str, parent: str | None = None
    ) -> tuple[GpuFacts, GpuUse]:
        """Read a GPU, or a MIG instance: then `parent` is the UUID of its GPU, `board`."""
        nvml = self._nvml
        utilization = power = None
        if parent is None:  # NVML measures the load of no instance, and the power of the board
            utilization = self._query(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
            power = self._query(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        slowdown = self._query(
            lambda: int(
                nvml.nvmlDeviceGetTemperatureThreshold(
                    board, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
                )
            )
        )
        ecc_errors = self._query(
            lambda: int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    board, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        )
        total, used = self._memory(handle)
        processes = self._processes(handle)
        name = self._query(lambda: str(nvml.nvmlDeviceGetName(handle)))
        facts = GpuFacts(
            index=index,
            uuid=uuid,
            model=name or ("NVIDIA GPU" if parent is None else "NVIDIA MIG"),
            memory=total,
            vendor="nvidia",
            mig=parent is not None,
            parent=parent,
            minor=self._query(lambda: int(nvml.nvmlDeviceGetMinorNumber(board))),
        )
        use = GpuUse(
            uuid=uuid,
            memory_used=used,
            utilization=_percent(utilization),
            temperature=self._temperature(board),
            power=power,
            processes=processes or (),
            processes_known=processes is not None,
            slowdown=slowdown or None,
            ecc_errors=ecc_errors,
            xid=self._xids.get(parent or uuid),
        )
        return facts, use

    def _mig_instances(self, handle: Any) -> list[Any] | None:
        """Return the handles of a GPU's MIG instances; None when it is not in MIG mode."""
        nvml = self._nvml
        mode = self._query(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        if mode != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        instances = []
        count = self._query(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0
        for position in range(count):
            # Positions have gaps: an empty one returns "not found".
            instance = self._query(
                partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
            )
            if instance is not None:
                instances.append(instance)
        return instances

    def _query(self, query: Callable[[], T]) -> T | None:
        """Read one field; return None if this GPU or driver does not have it."""
        nvml = self._nvml
        try:
            return query()
        except nvml.NVMLError as error:
            if error.value in {
                nvml.NVML_ERROR_UNINITIALIZED,
                nvml.NVML_ERROR_DRIVER_NOT_LOADED,
                nvml.NVML_ERROR_GPU_IS_LOST,
                nvml.NVML_ERROR_RESET_REQUIRED,
            }:
                raise  # not about this field: the GPU or the driver is gone
            return None

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        """Return total and used MiB."""
        nvml = self._nvml
        # Version 2 excludes memory reserved by the driver: on a small GPU that alone would
        # look like foreign use. Drivers before 510 have version 1 only.
        info = self._query(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
        if info is None:
            info = self._query(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        if info is None:
            return None, None
        return _mebibytes(info.total) or None, _mebibytes(info.used)

    def _temperature(self, handle: Any) -> int | None:
        nvml = self._nvml
        sensor = nvml.NVML_TEMPERATURE_GPU
        degrees = None
        if hasattr(nvml, "nvmlDeviceGetTemperatureV"):  # since driver 570
            degrees = self._query(lambda: int(nvml.nvmlDeviceGetTemperatureV(handle, sensor)))
        if degrees is None:
            degrees = self._query(lambda: int(nvml.nvmlDeviceGetTemperature(handle, sensor)))
        return degrees

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        """Return the compute and graphics processes on a GPU; None if they are not listed."""
        compute = self._list(handle, "nvmlDeviceGetComputeRunningProcesses")
        graphics_list = self._list(handle, "nvmlDeviceGetGraphicsRunningProcesses")
        if compute is None:
            return None
        processes: dict[int, GpuProcess] = {}
        for entries, graphics in ((compute, False), (graphics_list or [], True)):
            for entry in entries:
                known = processes.get(entry.pid)
                sizes = [
                    size
                    for size in (_mebibytes(entry.usedGpuMemory), known.memory if known else None)
                    if size is not None
                ]
                # Both lists report the same memory, so the maximum, not the sum.
                processes[entry.pid] = GpuProcess(
                    pid=entry.pid, memory=max(sizes, default=None), graphics=graphics
                )
        return tuple(processes[pid] for pid in sorted(processes) if pid > 0)

    def _list(self, handle: Any, function: str) -> list[Any] | None:
        """Return a list of processes, by the newest version of a function that works."""
        newest, older = getattr(self._nvml, function), getattr(self._nvml, f"{function}_v2")
        # An old driver without this version, or the list has grown meanwhile.
        for read in (newest, older, newest):
            entries: list[Any] | None = self._query(partial(read, handle))
            if entries is not None:
                return entries
        return None


def _mebibytes(value: int | None) -> int | None:
    return None if value is None or value >= _NOT_AVAILABLE else value // _MIB


def _percent(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= 100 else None
