"""The name under which older training scripts know the library: `kubeprofiler.KubeProfiler()`."""
