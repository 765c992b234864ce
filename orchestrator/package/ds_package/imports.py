"""The programs that a fresh interpreter runs to import the modules of a package."""

# -I hides the user's own site-packages, which a program of the user does see: put it back.
PREAMBLE = """
import os, site, sys
settings = os.path.join(sys.prefix, "pyvenv.cfg")
alone = os.path.exists(settings) and \
    "system-site-packages = true" not in open(settings).read().lower()
if site.check_enableusersite() is not None and not alone:
    user = site.getusersitepackages()
    if os.path.isdir(user): site.addsitedir(user)
first = sys.argv[1]
if first: sys.path.insert(0, first)
"""

# What an import rests on: the files that were read for it, and what is loaded. For the agent, which
# may recall an answer as long as none of them has changed (docs/adr/0004). It comes first, for what
# follows reads too.
READ = """
import os, sys
opened = set()
def see(event, arguments):
    path = arguments[0] if arguments else None
    if event in ("open", "os.listdir", "os.scandir") and isinstance(path, str):
        if event != "open" or not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            opened.add(os.path.join("/", path))
if hasattr(sys, "addaudithook"):
    sys.addaudithook(see)

def files_read():
    # None: it cannot be said. Python 3.7 has no hook.
    if not hasattr(sys, "addaudithook"):
        return None
    found = set(opened)
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line[line.find("/"):].rstrip("\\n") if "/" in line else ""
            if path.endswith(" (deleted)") and not path.startswith(("/memfd:", "/dev/", "/SYSV")):
                return None
            if path and not path.startswith(("/memfd:", "/SYSV")):
                found.update((path, os.path.dirname(path)))
    for module in list(sys.modules.values()):
        for name in ("__file__", "__cached__"):
            value = getattr(module, "__dict__", {}).get(name)
            if isinstance(value, str):
                found.add(os.path.join("/", value))
    # Read before anything could be seen.
    found.add(os.path.join(sys.prefix, "pyvenv.cfg"))
    for folder in sys.path:
        found.add(folder)
        if os.path.isdir(folder):
            found.update(os.path.join(folder, name) for name in os.listdir(folder)
                         if name.endswith(".pth"))
    return {os.path.normpath(path) for path in found
            if path and (path.startswith("/dev/shm/") or
                         not path.startswith(("/proc/", "/sys/", "/dev/")))}
"""

# What a module needs of another one it finds only if that one's symbols are everybody's.
LOAD = """
import ctypes, importlib
def load(name, before):
    for each in before:
        file = getattr(importlib.import_module(each), "__file__", None)
        if file: ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module(name)
"""

IMPORT_CODE = READ + PREAMBLE + LOAD + """
import json
nonce, torch, name, before = sys.argv[2:6]
answer = {}
try:
    if torch:
        importlib.import_module("torch")
    load(name, json.loads(before))
    read = files_read()
    answer["read"] = None if read is None else sorted(read)
    answer["ok"] = True
except BaseException as error:
    answer = {"kind": type(error).__name__, "text": str(error),
              "name": getattr(error, "name", None) or ""}
sys.stdout.flush()
os.write(1, ("\\n" + nonce + json.dumps(answer) + "\\n").encode())
os._exit(0)
"""


# Loading torch takes seconds of a processor; here once. Each module is imported in a process that is
# forked from there. Only what is well is said: the rest is tried again in a process of its own, which
# has loaded nothing before, and the reason that is told is that one's.
SHARED_CODE = READ + PREAMBLE + LOAD + """
import json, select, signal, time
nonce, torch, names, modules, seconds, reports = sys.argv[2:8]

def tell(**answer):
    sys.stdout.flush()
    os.write(1, ("\\n" + nonce + json.dumps(answer) + "\\n").encode())

def in_a_fork(act):
    ours, theirs = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
            os.dup2(theirs, 1)
            os.dup2(theirs, 2)
            act()
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    text, end = b"", time.monotonic() + float(seconds)
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([ours], [], [], left)[0]:
            os.kill(pid, signal.SIGKILL)
            break
        piece = os.read(ours, 65536)
        if not piece:
            break
        text += piece
    os.close(ours)
    return os.waitpid(pid, 0)[1] == 0, text.decode("utf-8", "replace")

def load_and_tell(name, before):
    load(name, before)
    if common is not None:
        tell(read=sorted(files_read() - common))

try:
    if torch:
        importlib.import_module("torch")
    for name in json.loads(names):
        importlib.import_module(name)
        tell(name=name)
    common = files_read()
    tell(read=None if common is None else sorted(common))
    # What starts a thread or keeps a device open cannot be forked.
    if len(os.listdir("/proc/self/task")) == 1 and not any(
            os.readlink("/proc/self/fd/" + fd).startswith("/dev/nvidia")
            for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)):
        for name, before in json.loads(modules):
            well, text = in_a_fork(lambda: load_and_tell(name, before))
            if well:
                os.write(1, text[text.rfind("\\n" + nonce):].encode())
                tell(name=name)
        if reports:
            well, text = in_a_fork(lambda: exec(reports, {"sys": sys}))
            if well:
                tell(report=text)
except BaseException:
    pass
os._exit(0)
"""
