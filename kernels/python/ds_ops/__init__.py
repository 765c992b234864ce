"""The installed ops, for Python: after `import ds_ops`, torch.ops.ds has them.

The package lies in <prefix>/python and loads what lies beside it: an op for every
<prefix>/ops/<name>/op.json, its library <prefix>/lib/libds_<name>.so.
"""

import json
import pathlib

import torch

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


def capabilities():
    """The keys of what is loaded: op.cpu_adam, …"""
    return sorted(op["capability"] for op in OPS.values())
