from fakes.nvml import nvml

__all__ = ["nvml"]
