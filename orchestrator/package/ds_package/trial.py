"""Trying the modules."""

import base64
import ctypes
import json
import os
import re
import signal
import sys

from ds_package.answers import AT_ONCE
from ds_package.imports import IMPORT_CODE, SHARED_CODE
from ds_package.installed import read_text, record_rows
from ds_package.processes import Process, clean_environment, last_lines, run_all
from ds_package.special import SPECIALS


def loaded_before(package, module):
    """The names of the package's modules that are loaded before this one."""
    special = SPECIALS.get(package["name"])
    ops = special.LOADED_BEFORE.get(module["op"], []) if special else []
    return [one["name"] for op in ops for one in package["modules"] if one["op"] == op]


def import_together(package, first, names, seconds):
    """(the names that can be imported, what ds_report printed, the files that were read): as far as
    it went well."""
    special = SPECIALS.get(package["name"])
    modules = [[module["name"], loaded_before(package, module)]
               for module in package.get("modules", [])]
    nonce = base64.b16encode(os.urandom(16)).decode("ascii")
    argv = [sys.executable, "-I", "-B", "-c", SHARED_CODE, first, nonce,
            "1" if package.get("torch") else "", json.dumps(names), json.dumps(modules),
            str(seconds), special().REPORT if special else ""]
    variables = clean_environment()
    # numpy's OpenBLAS starts its threads when it is loaded; with one there are none.
    variables.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    process = run_all([lambda: Process(argv, variables, seconds * (len(modules) + 2), 1 << 20)],
                      1)[0]
    well, text, files = set(), None, Files()
    for line in process.text().split("\n"):
        if line.startswith(nonce):
            answer = json.loads(line[len(nonce):])
            if "name" in answer:
                well.add(answer["name"])
            text = answer.get("report", text)
            if "read" in answer:
                files.add(answer["read"])
    return well, text, files


class Files:
    """What was read for the modules. Unknown if that of one of them is."""

    def __init__(self):
        self.known = True
        self.paths = set()

    def add(self, paths):
        self.known = self.known and bool(paths is not None)
        self.paths.update(paths or [])


def importing(module, before, first, torch, seconds):
    nonce = base64.b16encode(os.urandom(16)).decode("ascii")
    argv = [sys.executable, "-I", "-B", "-c", IMPORT_CODE, first, nonce, "1" if torch else "", module,
            json.dumps(before)]

    def start():
        process = Process(argv, clean_environment(), seconds, 1 << 20)
        process.nonce = nonce
        process.seconds = seconds
        return process
    return start


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def judge(process, module, files):
    """(status, detail) of a module that a process of its own has imported."""
    text = process.text()
    at = text.rfind("\n" + process.nonce)
    answer = {}
    if at >= 0:
        answer = json.loads(text[at + 1 + len(process.nonce):].split("\n")[0])
        text = text[:at]
    if answer.get("ok"):
        files.add(answer["read"])
        return "ok", ""
    said = last_lines(text)
    said = ": " + said if said else ""
    if not answer:
        if process.timed_out:
            return "crash", "no answer within %d s while it was imported" % process.seconds
        if process.status < 0:
            return "crash", "%s while it was imported%s" % (signal_name(-process.status), said)
        return "crash", "its process ended with exit code %d while it was imported%s" % (
            process.status, said)
    what = answer["text"].strip().split("\n")[-1][:400]
    if answer["kind"] in ("ImportError", "ModuleNotFoundError", "OSError"):
        return judge_import(answer["kind"], what, answer["name"], module)
    return "crash", "%s while it was imported: %s" % (answer["kind"], what)


def demangled(symbol):
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        function.restype = ctypes.c_char_p
        text = function(symbol.encode("ascii"), None, None, None)
        return text.decode("ascii", "replace") if text else symbol
    except (OSError, AttributeError, ValueError):
        return symbol


def judge_import(kind, what, name, module):
    if kind == "ModuleNotFoundError" and name:
        if module == name or module.startswith(name + "."):
            return "missing", "the package has no module %s" % name
        return "missing", "the Python module %s is not on this node" % name
    found = re.search(r"^(\S+): cannot open shared object file: No such file", what)
    if found:
        return "missing", "%s is not on this node" % found.group(1)
    found = re.search(r"version `(\S+?)' not found", what)
    if found:
        return "incompatible", "it needs %s, which %s does not have" % (found.group(1),
                                                                        what.split(":")[0])
    found = re.search(r"undefined symbol: (\w+)", what)
    if found:
        return "incompatible", "it needs the symbol %s, which no library here has" % \
            demangled(found.group(1))
    if "file too short" in what or "invalid ELF" in what:
        return "damaged", what
    return "incompatible", what


def top_levels(info):
    """What can be imported of a distribution, by its record."""
    names = [name for name in read_text(os.path.join(info, "top_level.txt")).split() if name]
    base = os.path.dirname(info)
    if not names:
        names = sorted({row[0].split("/")[0] for row in record_rows(info)
                        if row[0].endswith("/__init__.py") and row[0].count("/") == 1})
    return [name for name in names if os.path.exists(os.path.join(base, name, "__init__.py"))]


def try_modules(package, first, names, seconds):
    """(rows for the package's op modules, why the package itself cannot be imported, what ds_report
    says, the Files that were read)."""
    special = SPECIALS.get(package["name"])
    modules = package.get("modules", [])
    well, text, files = import_together(package, first, names, seconds)
    before = {module["name"]: loaded_before(package, module) for module in modules}
    todo = [name for name in names + list(before) if name not in well]
    starts = [importing(name, before.get(name, []), first, bool(package.get("torch")), seconds)
              for name in todo]
    if special and text is None:
        starts.append(lambda: Process(special().report_argv(first), clean_environment(), seconds,
                                      64000))
    processors = len(os.sched_getaffinity(0))
    done = run_all(starts, max(1, min(AT_ONCE, processors)))
    if special and text is None:
        text = done.pop().text()
    verdicts = special().verdicts(text) if special else {}
    reported = "ds_report failed: " + last_lines(text) if special and not verdicts else ""
    alone = {name: judge(process, name, files) for name, process in zip(todo, done)}
    faults = ["%s cannot be imported: %s" % (name, alone[name][1]) for name in names
              if alone.get(name, ("ok", ""))[0] != "ok"]
    rows = []
    for module in modules:
        status, detail = alone.get(module["name"], ("ok", ""))
        said = verdicts.get(module["op"])
        if said is not None:
            theirs = "OKAY" if said[0] and said[1] else "not installed" if not said[0] else "NO"
            if (status == "ok") != (theirs == "OKAY"):
                detail += ("; " if detail else "") + "ds_report says " + theirs
        device = "cuda" if module.get("compute_capabilities") else "cpu"
        rows.append({"op": module["op"], "status": status, "device": device, "detail": detail})
    return rows, faults, {"verdicts": verdicts, "fault": reported}, files
