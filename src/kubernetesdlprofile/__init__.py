"""The package name that older training scripts import: `kubeprofiler.KubeProfiler()`."""
