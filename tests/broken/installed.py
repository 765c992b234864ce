"""A release made by hand and installed by the real ds-install on a host of scripts/cluster, and DeepSpeed
beside it."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DSI_BUILD") or ROOT / "build/dev")
TABLE = ROOT / "orchestrator/docs/broken-installs.md"
CLUSTER = ROOT / "scripts/cluster"
CC = os.environ.get("CC", "cc")

# One op. A case replaces what is at the top, and what the self-test does.
SOURCE = """
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
%(top)s
__attribute__((visibility("default"))) int ds_self_test_%(test)s(const char* device, char* detail,
                                                          unsigned long size) {
  (void)device;
  snprintf(detail, size, "%%s", "right");
  %(body)s
  return 0;
}
"""


def run(argv, **options):
    return subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, **{"check": False, **options})


def compile_(folder, name, source, *flags):
    """A library; what cannot be made is an error of the test."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / (name + ".c")
    text.write_text(source, encoding="utf-8")
    library = folder / (name + ".so")
    made = run([CC, "-shared", "-fPIC", "-w", "-o", library, text, *flags])
    if made.returncode != 0:
        raise RuntimeError(made.stderr)
    return library


def needs_of(library):
    """As a build reads them: {"GLIBC": "2.34"} and the names of libraries."""
    symbols, libraries = {}, []
    text = run(["readelf", "-dV", "-W", library]).stdout
    for family, version in re.findall(r"Name: ([A-Z]+)_([0-9.]+)  Flags", text):
        old = symbols.get(family, "0")
        if [int(x) for x in version.split(".")] > [int(x) for x in old.split(".")]:
            symbols[family] = version
    libraries += re.findall(r"Shared library: \[(.*?)\]", text)
    return symbols, libraries


class Host:
    """One host with an sshd of its own, and a head that reaches it. What is in /var it sees, and what it
    changes there nobody else does."""

    def __init__(self, name):
        self.name = name

    @classmethod
    def up(cls):
        """None where there can be none."""
        host = cls("broken%d" % os.getpid())
        made = host.control("up", "1", "--mode", "namespaces")
        if made.returncode == 0:
            return host
        host.down()
        return None

    def control(self, *words):
        return run([CLUSTER, "--name", self.name, *words])

    def down(self):
        self.control("down")

    def on_head(self, argv):
        return [CLUSTER, "--name", self.name, "exec", *argv]

    def on_host(self, argv):
        return [CLUSTER, "--name", self.name, "node", "1", *argv]


class Site:
    """Without a host the installs are this machine's own."""

    def __init__(self, folder, host=None):
        self.folder = folder
        self.host = host
        self.count = 0
        self.home = folder / "home"
        self.home.mkdir()

    def op(self, case, place):
        """The library of a case."""
        flags = [flag.format(folder=place) for flag in case.flags]
        library = compile_(place, "libds_" + case.op,
                           SOURCE % {"top": case.top, "body": case.body,
                                     "test": case.test or case.op}, *flags)
        if case.shipped:
            case.shipped(library)
        return library

    def release(self, case, place):
        """A bundle with the op of the case, and one beside it that works."""
        if case.before:
            case.before(place)
        stage = place / "stage"
        files = {"bin/ds-probe": BUILD / "ds-probe", "bin/ds-report": BUILD / "ds-agent",
                 "bin/ds-facts": BUILD / "ds-facts"}
        ops = []
        for name, library in ((case.op, self.op(case, place / "op")),
                              ("good", self.good(self.folder / "good"))):
            files[f"lib/libds_{name}.so"] = library
            try:
                symbols, libraries = needs_of(library)
            except ValueError:
                symbols, libraries = {}, []
            row = {"name": name, "capability": "op." + name, "library": f"lib/libds_{name}.so",
                   "description": "", "devices": ["cpu"], "needs_symbols": symbols,
                   "needs_libraries": libraries}
            if name == case.op:
                row.update(case.manifest)
            ops.append(row)
        for path, source in case.files:
            files[path] = place / source
        rows = []
        for path, source in sorted(files.items()):
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(source), str(stage / path))
            content = (stage / path).read_bytes()
            rows.append({"path": path, "mode": "0755" if path.startswith("bin/") else "0644",
                         "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        manifest = {"schema": 1, "files": rows, "ops": sorted(ops, key=lambda op: op["name"]),
                    "built_with": {"arch": os.uname().machine, **case.built_with}}
        (stage / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        bundle = place / "ops.tar.zst"
        made = run(["tar", "-C", stage, "--zstd", "-cf", bundle, "manifest.json",
                    *[row["path"] for row in rows]])
        if made.returncode != 0:
            raise RuntimeError(made.stderr)
        return bundle

    def good(self, place):
        if not hasattr(self, "good_"):
            self.good_ = compile_(place, "libds_good",
                                  SOURCE % {"top": "", "body": "", "test": "good"})
        return self.good_

    def ds_install(self, case, place, *words):
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C.UTF-8",
                       "TMPDIR": str(place / "tmp")}
        (place / "tmp").mkdir(exist_ok=True)
        for name, value in case.environment.items():
            environment[name] = value.format(folder=place, PATH=os.environ["PATH"])
        # What is in the environment or in the mounts of the program is so on a host only if it runs
        # there.
        by_ssh = self.host and not case.inside and not case.environment
        argv = [BUILD / "ds-install", *words, *(("--hosts", "node001") if by_ssh else ("-l",)), "-r",
                "--json", "--probe-timeout", "2", "--prefix", place / case.prefix]
        if case.inside:
            # Mounts that go with the process.
            script = case.inside.format(folder=place) + ' && exec "$@"'
            argv = ["unshare", "-m", "/bin/sh", "-c", script, "sh", *argv]
        if by_ssh:
            argv = self.host.on_head(argv)
        elif self.host:
            argv = self.host.on_host(
                ["env", "-i", *[name + "=" + value for name, value in environment.items()], *argv])
        return run(argv, env=environment, cwd="/")

    def say(self, case):
        """What ours says: "ok", or the verdict and the cause."""
        self.count += 1
        place = self.folder / f"case{self.count}"
        place.mkdir()
        bundle = self.release(case, place)
        asked = self.ds_install(case, place, "--bundle", bundle)
        if case.after:
            if self.verdict(asked, case) != "ok":
                return "it was broken before: " + self.verdict(asked, case)
            self.damage(case, place / case.prefix)
            asked = self.ds_install(case, place, *case.then)
        said = self.verdict(asked, case)
        shutil.rmtree(str(place), True)
        return said.replace(str(place), "…")

    def damage(self, case, prefix):
        if not self.host:
            case.after(prefix)
            return
        # What a host writes is its own to see.
        code = ("import pathlib, sys; sys.path.insert(0, sys.argv[1]); import breakages; "
                "next(c for c in breakages.BROKEN + breakages.HEALTHY if c.name == sys.argv[2])"
                ".after(pathlib.Path(sys.argv[3]))")
        done = run(self.host.on_host(["/usr/bin/python3", "-B", "-c", code,
                                      pathlib.Path(__file__).resolve().parent, case.name, prefix]))
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    @staticmethod
    def verdict(asked, case):
        host, ops = {}, {}
        for line in asked.stdout.splitlines():
            row = json.loads(line)
            if row["type"] == "host":
                host = row
            elif row["type"] == "op":
                ops[row["op"]] = row
        warnings = [line for line in asked.stderr.splitlines() if line.startswith("warning: ")]
        if ops.get(case.op, {}).get("status", "ok") != "ok":
            row = ops[case.op]
            others = [name for name, op in ops.items() if name != case.op and op["status"] != "ok"]
            if others and not case.all_fail:
                return f"also of {others}: {row}"
            return f"{row['status']}: {row['detail']}"
        if host.get("error"):
            what = host["error"]["what"]
            return f"{host['result']}: {re.sub('^(this machine|node001): ', '', what)}"
        if not host:
            return "failed: " + asked.stderr.strip()
        if warnings:
            return "warned: " + warnings[0].split(": ", 2)[-1]
        if not ops or any(op["status"] != "ok" for op in ops.values()):
            return f"strange: {asked.stdout} {asked.stderr}"
        return "ok"


# Read once and forked for each library: importing torch takes seconds, and what ds_report says is
# computed by what runs in the child.
SERVER = r"""
import io, os, re, sys, contextlib
import deepspeed
import deepspeed.git_version_info as info
from deepspeed import env_report
name = sys.argv[1]
for line in sys.stdin:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        info.installed_ops[name] = True
        import deepspeed.ops.op_builder as b
        env_report.installed_ops[name] = True
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            env_report.main()
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())
        row = next((l for l in plain.splitlines() if l.startswith(name + " ")), "no row")
        print("\nsaid " + (" ".join(re.findall(r"\[[A-Z]+\]", row)) or row), flush=True)
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        print("\nsaid nothing: it ended", flush=True)
"""


class DeepSpeed:
    """The DeepSpeed of an environment, with the library of each case where its cpu_adam is."""

    def __init__(self, python, module, hide):
        self.module = module
        argv = [str(python), "-c", SERVER, "cpu_adam"]
        if hide:
            # With a torch without CUDA, a toolkit that is there breaks it.
            argv = ["unshare", "-m", "/bin/sh", "-c", 'mount -t tmpfs none /usr/local && exec "$@"',
                    "sh", *argv]
        self.server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True,
                                       env={**os.environ, "DS_ACCELERATOR": "cpu"}, cwd="/")

    @classmethod
    def found(cls, folder):
        python = os.environ.get("DSI_BROKEN_DEEPSPEED")
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        made = cache / "ds-install/deepspeed/new"
        if not python and (made / "complete").exists():
            # An environment of its own that sees the large one's packages.
            environment = folder / "deepspeed"
            run([made / "env/bin/python", "-m", "venv", "--without-pip", environment], check=True)
            site = next((environment / "lib").glob("python*/site-packages"))
            large = next((made / "env/lib").glob("python*/site-packages"))
            (site / "large.pth").write_text(str(large) + "\n", encoding="utf-8")
            with zipfile.ZipFile(next((made / "release/wheels").glob("deepspeed-*.whl"))) as wheel:
                wheel.extractall(site)
            python = environment / "bin/python"
        if not python or os.geteuid() != 0:
            return None
        where = run([python, "-c", "import importlib.util as u; "
                                   "print(u.find_spec('deepspeed').submodule_search_locations[0])"])
        module = pathlib.Path(where.stdout.strip()) / "ops/adam/cpu_adam_op.so"
        return cls(python, module, True)

    def say(self, case, site):
        if not case.is_library:
            return "-"
        place = site.folder / "theirs"
        place.mkdir()
        if case.before:
            case.before(place)
        library = site.op(case, place / "op")
        if case.damage:
            case.damage(library)
        self.module.unlink(missing_ok=True)
        if library.exists() or library.is_symlink():
            shutil.copyfile(str(library), str(self.module), follow_symlinks=False)
        self.server.stdin.write("\n")
        self.server.stdin.flush()
        # What DeepSpeed prints of itself comes before.
        said = next(line for line in self.server.stdout if line.startswith("said "))[5:].strip()
        self.module.unlink(missing_ok=True)
        shutil.rmtree(str(place), True)
        return said

    def end(self):
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()
