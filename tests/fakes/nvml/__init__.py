"""A stand-in for the NVIDIA driver's library, and the fixture `nvml` that scripts it."""

from fakes.nvml.fixture import FakeNvml, Gpu, Process, build, nvml

__all__ = ["FakeNvml", "Gpu", "Process", "build", "nvml"]
