"""How busy a MIG instance is: NVML's 'GPU Performance Monitoring', which GPUs have from Hopper on.

Utilization as NVML gives it of a whole GPU is not told by instance.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pynvml

_UTILIZATION = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL


class Meter:
    """Measures one instance, from one call to the next."""

    def __init__(self, gpu: Any, instance: int) -> None:
        if not pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._gpu = gpu
        self._instance = instance
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = 1
        self._request.metrics[0].metricId = _UTILIZATION
        self._last = pynvml.nvmlGpmSampleAlloc()
        self._next = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmMigSampleGet(gpu, instance, self._last)

    def __call__(self) -> float | None:
        """Percent of the time since the call before; None: it does not tell this time."""
        pynvml.nvmlGpmMigSampleGet(self._gpu, self._instance, self._next)
        self._request.sample1, self._request.sample2 = self._last, self._next
        pynvml.nvmlGpmMetricsGet(self._request)
        self._last, self._next = self._next, self._last
        metric = self._request.metrics[0]
        return float(metric.value) if metric.nvmlReturn == pynvml.NVML_SUCCESS else None

    def close(self) -> None:
        """Give its memory back."""
        for sample in (self._last, self._next):
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
