"""NVIDIA's devices. NVML knows them without starting CUDA: a process that has asked may still fork,
and may still choose its devices."""

import ctypes
import os


def _visible(devices):
    """As CUDA_VISIBLE_DEVICES has it: numbers or UUIDs; the first that is none ends the list."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return devices
    named = 0
    for one in (word.strip() for word in given.split(",")):
        exists = int(one) < devices if one.isdigit() else one.startswith(("GPU-", "MIG-"))
        if not exists:
            break
        named += 1
    return min(named, devices)


def count():
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0, "there is no NVIDIA driver"
    devices = ctypes.c_uint(0)
    failed = nvml.nvmlInit_v2()
    if failed == 0:
        failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(devices))
        nvml.nvmlShutdown()
    if failed != 0:
        return 0, f"NVIDIA's driver does not answer (NVML error {failed})"
    if devices.value == 0:
        return 0, "NVIDIA's driver has no device"
    visible = _visible(devices.value)
    return visible, "" if visible else "CUDA_VISIBLE_DEVICES names none"
