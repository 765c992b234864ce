"""What ops can have code for. A new one is a module here with the name that op.json has for it and a
function count() -> (devices that this process may use, why there is none). It is asked at most once
and only when an op for it is asked about; it must leave no state that a fork would break."""

import functools
import importlib
import pkgutil

NAMES = sorted(module.name for module in pkgutil.iter_modules(__path__))


@functools.lru_cache(maxsize=None)
def why_no_device(name):
    """Empty where there is one."""
    if name not in NAMES:
        return "this release knows no such accelerator"
    count, why = importlib.import_module(f"{__name__}.{name}").count()
    return "" if count > 0 else why or "no device"
