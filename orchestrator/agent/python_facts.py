# Runs with -I in the interpreter that is asked about and prints one JSON object: PythonFacts of
# protocol.h. It changes nothing and imports nothing that is not Python's own, but for pip's idea
# of tags. Part of the agent, so: short. An old Python must still be able to read it.
import sys
if sys.version_info < (3, 6):
    sys.stdout.write('{"version": "%d.%d.%d"}\n' % sys.version_info[:3])
    sys.exit(0)
import base64, ctypes, glob, hashlib, json, os, re, site, subprocess, sysconfig

package, facts = sys.argv[1], {}
site_folder = os.path.realpath(sysconfig.get_path("platlib"))
state = os.path.join(os.path.dirname(site_folder), "ds-install", package)


def read(path, mode="r"):
    try:
        with open(path, mode) as file:
            return file.read()
    except (OSError, ValueError):
        return b"" if "b" in mode else ""


def normalised(name):
    return re.sub(r"[-_.]+", "-", name).lower()


settings = read(os.path.join(sys.prefix, "pyvenv.cfg")).lower()
if not settings or "system-site-packages = true" in settings:
    try:  # -I hides it, a program of the user sees it.
        if os.path.isdir(site.getusersitepackages()):
            site.addsitedir(site.getusersitepackages())
    except Exception:
        pass


def find_tags():
    try:
        from pip._vendor.packaging.tags import sys_tags
    except ImportError:
        try:
            from packaging.tags import sys_tags
        except ImportError:
            here = "cp%d%d" % sys.version_info[:2]
            abi = here + ("m" if sys.version_info < (3, 8) else "")
            arch = "linux_" + os.uname()[4]
            return [here + "-" + abi + "-" + p for p in (arch, "many" + arch.replace("_", "2014_", 1))] + [
                "py3-none-any"]
    mine = "cp%d%d" % sys.version_info[:2]
    common = re.compile(r"-(any|linux_\w+|manylinux2014_\w+|manylinux_2_(17|28|34)_\w+)$")
    # The rest of them are the same for older systems and older Pythons.
    return [t for t in map(str, sys_tags()) if t.startswith(mine + "-" + mine) or common.search(t)]


def find_installed():
    found = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        here = {}
        for entry in names:
            stem, end = os.path.splitext(entry)
            if end == ".dist-info":
                name, _, version = stem.rpartition("-")
            elif end in (".egg-info", ".egg"):
                name, _, version = stem.partition("-")
                version = re.sub(r"-py[\d.]+.*$", "", version)
                if not version:
                    m = re.search(r"^Version: (\S+)", read(os.path.join(folder, entry, "PKG-INFO")), re.M)
                    version = m.group(1) if m else ""
            elif end == ".egg-link":
                name, version = stem, ""
                for info in glob.glob(os.path.join(read(os.path.join(folder, entry)).split("\n")[0], "*.egg-info")):
                    m = re.search(r"^Version: (\S+)", read(os.path.join(info, "PKG-INFO")), re.M)
                    version = m.group(1) if m else ""
            else:
                continue
            if name and not name.startswith("~"):
                here[normalised(name)] = version
        for name in here:
            found.setdefault(name, here[name])
    return found


def find_torch():
    from importlib.util import find_spec
    spec = find_spec("torch")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        return ""
    text = read(os.path.join(places[0], "version.py"))
    for key, name in (("torch", "__version__"), ("torch_cuda", "cuda")):
        # cuda: Optional[str] = '13.0'
        m = re.search(r"^%s\b[^=\n]*= *['\"]([^'\"]*)" % name, text, re.M)
        facts[key] = m.group(1) if m else ""
    facts["torch_path"] = places[0]
    c10 = os.path.join(places[0], "lib", "libc10.so")
    facts["torch_cxx11_abi"] = b"St7__cxx1112basic_string" in read(c10, "rb")
    return c10


def find_libraries(c10):
    try:
        facts["glibc"] = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    except (ValueError, OSError, IndexError, AttributeError):
        pass
    # Whichever comes into a process with torch, or without one.
    for name in (c10, "libstdc++.so.6"):
        try:
            if name:
                ctypes.CDLL(name)
        except OSError:
            continue
        m = re.search(r"(/\S*/libstdc\+\+\.so\S*)$", read("/proc/self/maps"), re.M)
        if not m:
            continue
        data = read(m.group(1), "rb")
        for key, word in (("glibcxx", b"GLIBCXX"), ("cxxabi", b"CXXABI")):
            all_of = [v.decode() for v in re.findall(b"\\0" + word + br"_([\d.]+)(?=\0)", data)]
            facts[key] = max(all_of, key=lambda v: [int(n) for n in v.split(".")]) if all_of else ""
        return


def why_not_writable():
    for folder in (site_folder, os.path.realpath(sysconfig.get_path("purelib")),
                   os.path.realpath(sysconfig.get_path("scripts")), state):
        at = folder
        while not os.path.isdir(at):
            at = os.path.dirname(at)
        if os.statvfs(at).f_flag & os.ST_RDONLY:
            return folder + " is on a read-only file system"
        if not os.access(at, os.W_OK | os.X_OK):
            owner = os.stat(at).st_uid
            try:
                import pwd
                owner = pwd.getpwuid(owner).pw_name
            except (ImportError, KeyError):
                pass
            return "%s belongs to %s, and this user may not write there" % (folder, owner)
    mark = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix == sys.base_prefix and os.path.exists(mark):
        return "%s is managed by the operating system (%s)" % (sys.executable, mark)
    return ""


def find_gpus():
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=8).stdout.decode()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    return sorted(set(re.findall(r"^\d+\.\d+$", text, re.M)))


facts.update(executable=sys.executable, version="%d.%d.%d" % sys.version_info[:3],
             prefix=sys.prefix, site=site_folder, state=state, installed=find_installed(),
             not_writable=why_not_writable())
# Of Python's own, or of what lies beside it: what -I -m pip would run.
facts["pip"] = facts["installed"].get("pip", "")
facts["writable"] = not facts["not_writable"]
space = os.statvfs(site_folder)
facts["free_bytes"] = (space.f_bfree if os.geteuid() == 0 else space.f_bavail) * space.f_frsize
if len(sys.argv) < 3:  # What only a plan needs.
    facts.update(tags=find_tags(), compute_capabilities=find_gpus())
    find_libraries(find_torch())


def is_record(digest):
    """What this program installed is still what is there."""
    for info in glob.glob(os.path.join(glob.escape(site_folder), "*.dist-info")):
        if normalised(os.path.basename(info)[:-10].rpartition("-")[0]) == package:
            found = hashlib.sha256(read(os.path.join(info, "RECORD"), "rb")).digest()
            return base64.urlsafe_b64encode(found).decode().rstrip("=") == digest
    return False


try:
    known = json.loads(read(os.path.join(state, "state.json")) or "{}")
except ValueError:
    known = {}
there = facts["installed"].get(package, "")
facts["current"] = package + " " + there if there else ""
if known.get("release") and is_record(known.get("record")):
    facts["current"] = known["release"]
facts["previous"] = (known.get("saved") or {}).get("label", "")
facts["interrupted"] = os.path.exists(os.path.join(os.path.dirname(state), "journal.json"))
print(json.dumps(facts))
