"""NVML by way of nvidia-ml-py: what NVIDIA's driver says of its GPUs, each value checked or None.

The library may hang, crash or talk nonsense, so nothing but the process of
:mod:`upshift.runtime.accelerators.agent` imports this room. Source: 'NVML API Reference Guide', release 13.
"""
