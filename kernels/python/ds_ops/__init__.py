"""The installed ops, for Python: after `import ds_ops`, torch.ops.ds has them.

The package lies in <prefix>/python and loads what lies beside it: an op for every
<prefix>/ops/<name>/op.json, its library <prefix>/lib/libds_<name>.so.
"""

import json
import pathlib

import torch

from . import accelerators

_PREFIX = pathlib.Path(__file__).resolve().parents[2]


def _load_all():
    loaded = {}
    for description in sorted(_PREFIX.glob("ops/*/op.json")):
        name = description.parent.name
        library = _PREFIX / "lib" / f"libds_{name}.so"
        if not library.is_file():
            raise ImportError(
                f"ds_ops: the op {name} is described in {description} but its library {library} is "
                f"missing; install the release again")
        try:
            op = json.loads(description.read_text(encoding="utf-8"))
            torch.ops.load_library(str(library))
        except (OSError, ValueError) as error:
            raise ImportError(
                f"ds_ops: cannot load the op {name} from {library} with torch "
                f"{torch.__version__}: {error}") from error
        loaded[name] = op
    if not loaded:
        raise ImportError(f"ds_ops: there is no op in {_PREFIX / 'ops'}")
    return loaded


#: Name of each loaded op, with what its op.json says of it.
OPS = _load_all()


def why_not(key):
    """Why `key` ("op.async_io") is not supported on this machine; empty if it is. Devices are looked
    for when an op is asked about that has code for them, and CUDA is not started."""
    op = next((op for op in OPS.values() if op["capability"] == key), None)
    if op is None:
        return f"there is no op with the capability {key} in {_PREFIX}"
    reasons = {device: accelerators.why_no_device(device) for device in op["devices"]}
    if not all(reasons.values()):
        return ""
    said = ", ".join(f"{device}: {why}" for device, why in reasons.items())
    return f"no device that it has code for ({said})"


def supports(key):
    """Whether the op with this capability is installed, loads, and has a device to work on."""
    return not why_not(key)


def capabilities():
    """The keys of all that is supported on this machine, sorted: op.cpu_adam, ..."""
    return sorted(op["capability"] for op in OPS.values() if supports(op["capability"]))
