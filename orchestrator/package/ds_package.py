#!/usr/bin/env python3
"""Puts the package of a release into the Python environment of the interpreter that runs this, and
takes it out again. It is bin/ds-package of a release; ds-agent starts it.

    ds-package install  --release FOLDER    the release's wheels, in one transaction
    ds-package rollback --package NAME      what was there before the last one
    ds-package uninstall --package NAME     take it away
    ds-package report   --package NAME      is it whole, and what can be imported?
    ds-package recover  --package NAME      undo a transaction that was cut off

How nothing is lost. pip installs into a folder beside site-packages ("stage"), with --root. There
the files are compared with the wheel's own digests and the modules are imported. Nothing of the
environment has been touched so far. Then the old files are moved out, by rename, to "saved-TOKEN",
and the new ones in, by rename. What is to be moved is written to journal.json before the first
move; the transaction is done when state.json.next is renamed to state.json. Whoever finds a journal
whose token is not the state's moves everything back: same inodes, same bytes, same times.

Two processes do it. The one that was started only waits; the other one, in a session of its own,
works. If the worker is killed, the first one ends what that had started, puts things back at once,
and says which of the two is there now. SIGUSR1 makes it kill the worker itself: that is how a run is
cancelled, after the switch has begun too. If the first one is killed, or standard input ends before
the switch, the worker puts back. If both are, the next contact does.

All state lies in ENVIRONMENT/lib/pythonX.Y/ds-install: whoever sees the environment sees it, also
where several hosts share it.

    environment.lock, journal.json   one of each: packages share folders, scripts and dependencies
    NAME/state.json                  what was installed of one package, and what is kept for rollback

(The shared names have dots; no package's normalised name has one.)

Python 3.6 and later, nothing but the standard library. Answers are JSON objects, one a line, on
descriptor 3 or standard output.
"""

import argparse
import ast
import base64
import csv
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import select
import shutil
import signal
import site as site_module
import stat
import subprocess
import sys
import sysconfig
import time

SCHEMA = 1
BY_HAND = "by hand"
KEPT_HISTORY = 20
PARTIAL = ".ds-partial"  # The end of the name of a file that is being copied.
AT_ONCE = 4
# The worker's exit status when another run holds the lock, and when a run whose worker was killed
# had done what it was to do.
BUSY = 75
COMMITTED = 76


class Failure(Exception):
    """An expected failure: what happened, and what the reader can do."""

    def __init__(self, what, help_text=""):
        super().__init__(what)
        self.what = what
        self.help = help_text


class Busy(Failure):
    """Another run holds the lock; what is half done is that one's."""


class HeadLeft(Failure):
    def __init__(self):
        super().__init__("the head left before the switch")


def normalised(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def find_answer_fd():
    # Not inherited by any program that is started from here.
    try:
        if stat.S_ISFIFO(os.fstat(3).st_mode):
            return os.dup(3)
    except OSError:
        pass
    return os.dup(1)


ANSWER = -1
QUIET = [False]  # Of the second worker only a result is told.


def say(**message):
    if QUIET[0] and "result" not in message:
        return
    try:
        os.write(ANSWER, (json.dumps(message) + "\n").encode("utf-8"))
    except OSError:
        pass  # Nobody listens any more; what has to be done is done all the same.


# ---- The environment


class Environment:
    """Where a wheel's files go, and where this program keeps its own."""

    def __init__(self, package):
        self.site = os.path.realpath(sysconfig.get_path("platlib"))
        self.pure = os.path.realpath(sysconfig.get_path("purelib"))
        self.scripts = os.path.realpath(sysconfig.get_path("scripts"))
        self.prefix = os.path.realpath(sys.prefix)
        self.folder = os.path.join(os.path.dirname(self.site), "ds-install")
        self.lock = os.path.join(self.folder, "environment.lock")
        self.journal = os.path.join(self.folder, "journal.json")
        # How far the transaction of the journal has come, and what that becomes when it is undone.
        self.phase = os.path.join(self.folder, "journal.phase")
        self.phase_back = os.path.join(self.folder, "journal.back")
        self.package = package
        self.state_folder = os.path.join(self.folder, package)

    def path(self, *names):
        return os.path.join(self.state_folder, *names)

    def sites(self):
        return sorted({self.site, self.pure})

    def bases(self):
        """Folders that hold everything a wheel may bring; the widest first."""
        wide = [self.prefix, os.path.dirname(self.scripts), self.site, self.pure]
        return sorted(set(wide), key=len)

    def is_ours(self, path):
        return any(path.startswith(base + os.sep) for base in self.bases())


def why_not_writable(folder):
    """Empty if this user can make files there."""
    existing = folder
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        return "%s is on a read-only file system" % folder
    if not os.access(existing, os.W_OK | os.X_OK):
        owner = os.stat(existing).st_uid
        try:
            import pwd
            owner = pwd.getpwuid(owner).pw_name
        except (ImportError, KeyError):
            pass
        return "%s belongs to %s, and this user may not write there" % (folder, owner)
    return ""


def check_writable(environment):
    for folder in environment.sites() + [environment.scripts, environment.state_folder]:
        reason = why_not_writable(folder)
        if reason:
            raise Failure(reason, "name an environment of your own with --python, or give the right "
                                  "to write there (-s installs with sudo)")
    marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix == sys.base_prefix and os.path.exists(marker):
        raise Failure("%s is managed by the operating system (%s)" % (sys.executable, marker),
                      "make a virtual environment on the node and name its Python with --python")


def give_to_owner(environment, path):
    """What root puts into the environment of a user is the user's."""
    owner = os.stat(environment.site)
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    os.lchown(path, owner.st_uid, owner.st_gid)
    for folder, names, files in os.walk(path):
        for name in names + files:
            os.lchown(os.path.join(folder, name), owner.st_uid, owner.st_gid)


# ---- Files: moves that can be undone


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(path):
    """Everything written is on the disk: pip syncs nothing."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            os.sync()
    except (AttributeError, OSError):
        os.sync()
    finally:
        os.close(fd)


def write_file(path, text):
    """The old text or the new one, also after a power cut."""
    partial = path + ".partial"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        remove_quietly(partial)  # On a full disk it only takes space.
        raise
    sync_folder(os.path.dirname(path))


def read_json(path):
    """None only if there is no such file. What cannot be read is no reason to throw away what it
    tells of."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Failure("%s is damaged" % path, "look for a failing disk, and put the file back from "
                      "a backup; nothing was changed or removed")
    return value


def is_there(path):
    """Like os.path.lexists, but a disk that does not answer is no "no"."""
    try:
        os.lstat(path)
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def is_folder(path):
    return os.path.isdir(path) and not os.path.islink(path)


def move(source, target):
    """A rename where the kernel can; else file by file, so that at every moment each file is whole
    under at least one of its names. (An overlay refuses to rename a folder of its lower layer.)"""
    try:
        os.rename(source, target)
        return
    except OSError as error:
        if error.errno == errno.EXDEV:
            pass
        elif is_folder(target) and is_folder(source) and error.errno in (errno.ENOTEMPTY,
                                                                         errno.EEXIST):
            pass  # A move that was cut off: go on with it.
        else:
            raise
    if is_folder(source):
        status = os.stat(source)
        if not is_folder(target):
            remove(target)
            # Made with its owner and mode: a move that is cut off and goes back merges into it.
            remove(target + PARTIAL)
            os.mkdir(target + PARTIAL)
            copy_attributes(status, target + PARTIAL)
            os.chmod(target + PARTIAL, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
            os.rename(target + PARTIAL, target)
        for name in os.listdir(source):
            if name.endswith(PARTIAL):
                remove(os.path.join(source, name))
            else:
                move(os.path.join(source, name), os.path.join(target, name))
        copy_attributes(status, target)
        os.rmdir(source)
        return
    partial = target + PARTIAL
    remove(partial)
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), partial)
    else:
        shutil.copyfile(source, partial)
        fd = os.open(partial, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    copy_attributes(status, partial)
    os.rename(partial, target)
    os.unlink(source)


def copy_attributes(status, path):
    follow = not os.path.islink(path)
    try:
        os.chown(path, status.st_uid, status.st_gid, follow_symlinks=follow)
    except OSError:
        pass  # Only root may; the others own what they copy.
    if follow:
        os.chmod(path, stat.S_IMODE(status.st_mode))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=follow)


def folder_stamps(paths):
    """Modes and times of folders, to be put back."""
    stamps = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        stamps[path] = [stat.S_IMODE(status.st_mode), status.st_mtime_ns]
    return stamps


def restore_stamps(stamps):
    for path in sorted(stamps, key=len, reverse=True):
        mode, mtime = stamps[path]
        if not is_folder(path):
            continue
        try:
            status = os.stat(path)
            if stat.S_IMODE(status.st_mode) != mode:
                os.chmod(path, mode)
            if status.st_mtime_ns != mtime:
                os.utime(path, ns=(status.st_atime_ns, mtime))
        except OSError:
            pass


def folders_below(paths):
    found = []
    for path in paths:
        if is_folder(path):
            found.append(path)
            for folder, names, _ in os.walk(path):
                found += [os.path.join(folder, name) for name in names]
    return found


# ---- What is installed


class Installed:
    def __init__(self, kind, path, name, version):
        self.kind = kind  # dist-info, egg-info, egg-link or egg.
        self.path = path
        self.name = name
        self.version = version


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def version_in(folder):
    for name in ("METADATA", "PKG-INFO"):
        found = re.search(r"^Version:\s*(\S+)", read_text(os.path.join(folder, name)), re.M)
        if found:
            return found.group(1)
    return ""


def distributions(sites):
    """Every distribution in these folders, whatever has put it there."""
    for folder in sites:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in names:
            stem, extension = os.path.splitext(entry)
            path = os.path.join(folder, entry)
            if extension == ".egg-link":
                target = read_text(path).split("\n")[0].strip()
                version = ""
                try:
                    for inner in os.listdir(target):
                        if inner.endswith(".egg-info"):
                            version = version_in(os.path.join(target, inner)) or version
                except OSError:
                    pass
                yield Installed("egg-link", path, stem, version)
            elif extension in (".dist-info", ".egg-info", ".egg"):
                name, _, rest = stem.partition("-")
                if extension == ".dist-info":
                    name, _, rest = stem.rpartition("-")
                if not name:
                    name, rest = stem, ""
                yield Installed(extension[1:], path, name,
                                rest.split("-py")[0] or version_in(path))


def find_installed(environment, name):
    return [one for one in distributions(environment.sites()) if normalised(one.name) == name]


def record_rows(info):
    text = read_text(os.path.join(info, "RECORD"))
    return [row for row in csv.reader(io.StringIO(text)) if row]


def compiled_of(path):
    """The files that Python has made of a source file."""
    folder, name = os.path.split(path)
    stem, extension = os.path.splitext(name)
    if extension != ".py":
        return []
    cache = os.path.join(folder, "__pycache__")
    try:
        entries = os.listdir(cache)
    except OSError:
        return []
    return [os.path.join(cache, entry) for entry in entries
            if entry.endswith(".pyc") and entry.startswith(stem + ".")]


def owned_files(environment, one):
    """Every file of a distribution that is there, and the new text of files that only lose a line."""
    files, edits = set(), {}
    base = os.path.dirname(one.path)

    def add(path):
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        # A record may say anything; only what lies in the environment is the package's.
        if environment.is_ours(path) and os.path.lexists(path) and not is_folder(path):
            files.add(path)
            files.update(compiled_of(path))

    def add_tree(path):
        for folder, _, names in os.walk(path):
            for name in names:
                add(os.path.join(folder, name))

    def edit_easy_install(target):
        path = os.path.join(base, "easy-install.pth")
        lines = read_text(path).splitlines(True)
        kept = [line for line in lines
                if os.path.normpath(os.path.join(base, line.strip())) != os.path.normpath(target)]
        if len(kept) != len(lines):
            add(path)
            # Lines that only serve the others.
            edits[path] = "".join(kept) if any(line.strip() and not line.startswith("import sys")
                                               for line in kept) else None

    if one.kind == "egg-link":
        add(one.path)
        edit_easy_install(read_text(one.path).split("\n")[0].strip())
        return files, edits
    if one.kind == "egg":
        if is_folder(one.path):
            add_tree(one.path)
        else:
            add(one.path)
        edit_easy_install(one.path)
        return files, edits
    listed = []
    if one.kind == "dist-info":
        listed = [os.path.join(base, row[0]) for row in record_rows(one.path)]
    elif is_folder(one.path):
        text = read_text(os.path.join(one.path, "installed-files.txt"))
        listed = [os.path.join(one.path, line) for line in text.split("\n") if line]
    if not listed:
        installer = read_text(os.path.join(one.path, "INSTALLER")).strip()
        raise Failure(
            "%s %s in %s was installed %s and has no record of its files" %
            (one.name, one.version, base, "by " + installer if installer else "without pip"),
            "remove it with the program that installed it, then run this again")
    for path in listed:
        add(os.path.normpath(path))
    add_tree(one.path)
    return files, edits


def to_units(environment, files):
    """The same files as few paths: a folder with nothing else in it stands for all that it holds."""
    protected = set(environment.bases()) | {environment.site, environment.pure,
                                            environment.scripts, environment.folder}
    for path in list(protected):
        while len(path) > 1:
            protected.add(path)
            path = os.path.dirname(path)
    for base in environment.bases():
        protected.update(os.path.join(base, name) for name in
                         ("bin", "lib", "lib64", "share", "include", "etc", "var", "sbin"))
    above = set()
    for path in files:
        folder = os.path.dirname(path)
        while folder not in above and len(folder) > 1:
            above.add(folder)
            folder = os.path.dirname(folder)

    def walk(folder):
        units, whole = [], folder not in protected
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.path in above:
                        inner, inner_whole = walk(entry.path)
                        units += inner
                        whole = whole and inner_whole
                    else:
                        whole = False
                elif entry.path in files:
                    units.append(entry.path)
                else:
                    whole = whole and is_orphan(folder, entry.name)
        return ([folder], True) if whole else (units, False)

    def is_orphan(folder, name):
        """Compiled from a source that is not there, or is one of these files."""
        if os.path.basename(folder) != "__pycache__" or not name.endswith(".pyc"):
            return False
        source = os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")
        return source in files or not os.path.lexists(source)

    found, left = [], set(files)
    for base in environment.bases():
        below = {path for path in left if path.startswith(base + os.sep)}
        if below:
            found += walk(base)[0]
            left -= below
    return sorted(found)


# ---- The transaction


def make_folder(environment):
    stamps = folder_stamps([os.path.dirname(environment.folder)])
    if not os.path.isdir(environment.folder):
        os.makedirs(environment.folder, mode=0o755, exist_ok=True)
        restore_stamps(stamps)


class Lock:
    """Of the environment. A shared one keeps changes out and lets others look."""

    def __init__(self, environment, wait, shared=False):
        self.exclusive = not shared
        make_folder(environment)
        deadline = time.monotonic() + wait
        while True:
            self.fd = os.open(environment.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self.fd)
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if time.monotonic() >= deadline:
                    raise Busy("%s is being changed by another run (%s)" %
                               (environment.prefix,
                                read_text(environment.lock).strip() or "unknown"),
                               "wait for that run to end")
                watch_input(0.1)
                continue
            # The last uninstall may have removed it between the two steps.
            try:
                if os.stat(environment.lock).st_ino == os.fstat(self.fd).st_ino:
                    break
            except OSError:
                make_folder(environment)
            os.close(self.fd)

    def name(self, text):
        try:
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, text.encode("utf-8", "replace"), 0)
        except OSError:
            pass  # For people only.

    def close(self):
        os.close(self.fd)


def read_own(path):
    """What a run has left. Of a later ds-install's nothing can be told, so nothing is done."""
    value = read_json(path)
    if value and value.get("schema", SCHEMA) > SCHEMA:
        raise Failure("%s was written by a later ds-install (schema %d; this one knows %d)" %
                      (path, value["schema"], SCHEMA), "use that one; nothing was changed")
    return value


def read_state(environment):
    return read_own(environment.path("state.json")) or {}


def prune(environment, state):
    """Removes what no state needs: stages, what was moved away, trees that are two steps back."""
    keep = {"state.json", "ds-package"}
    if state.get("saved"):
        keep.add("saved-" + state["saved"]["token"])
    try:
        names = os.listdir(environment.state_folder)
    except OSError:
        return
    for name in names:
        if name not in keep:
            remove_quietly(environment.path(name))


def remove_quietly(path):
    try:
        remove(path)
    except OSError:
        pass  # In nobody's way; the next run tries again.


def recover(environment):
    """Undoes a transaction that did not end, of whatever package. True if there was one. Can itself
    be cut off anywhere: it starts from the phase that was reached."""
    journal = read_own(environment.journal)
    if journal is None:
        for name in os.listdir(environment.folder):
            if name.startswith("journal."):
                remove_quietly(os.path.join(environment.folder, name))
        prune(environment, read_state(environment))
        return False
    owner = Environment(journal["package"])
    state = read_state(owner)
    undone = state.get("token") != journal["token"]
    if undone:
        undo(owner, journal)
    os.unlink(owner.journal)
    sync_folder(owner.folder)
    for path in (owner.phase, owner.phase_back, owner.path("state.json.next")):
        remove_quietly(path)
    if undone:
        restore_stamps(journal["stamps"])
    prune(owner, state)
    if is_empty(state) and owner.package != environment.package:
        remove_state(owner)
    return undone


def undo(environment, journal):
    phase = "out"
    if is_there(environment.phase):
        with open(environment.phase, encoding="utf-8") as file:
            phase = file.read().strip()
    if phase == "in":
        # All that was to go out is out, so what lies at these places came in.
        trash = environment.path("trash-" + journal["token"])
        kept = environment.path("saved-")
        for number, (source, path) in enumerate(journal["in"]):
            remove(path + PARTIAL)
            if not is_there(path):
                continue
            if source.startswith(kept):
                # Of a rollback: it goes back there, for the next one. Merged with what a move that
                # was cut off had left.
                remove(source + PARTIAL)
                move(path, source)
            else:
                aside = os.path.join(trash, str(number))
                remove(aside)
                move(path, aside)
        for folder in reversed(journal["made"]):
            try:
                os.rmdir(folder)
            except OSError:
                pass
        # Renamed, not written: there may be no space.
        os.rename(environment.phase_back, environment.phase)
        sync_folder(environment.folder)
    for path, saved in reversed(journal["out"]):
        remove(path + PARTIAL)
        if is_there(saved):
            move(saved, path)
    restore_stamps(journal["stamps"])


def is_empty(state):
    """Nothing of ours is installed, and nothing is kept."""
    return not state.get("release") and not state.get("saved")


def remove_state(environment):
    """The program goes last: as long as it is there, an uninstall can be asked for again."""
    try:
        for name in os.listdir(environment.state_folder):
            if name != "ds-package":
                remove_quietly(environment.path(name))
    except FileNotFoundError:
        return
    remove_quietly(environment.state_folder)


def remove_folder(environment):
    """With the lock's file, so this is the last that a run does: from then on another one may work.
    """
    stamps = folder_stamps([os.path.dirname(environment.folder)])
    if os.listdir(environment.folder) != [os.path.basename(environment.lock)]:
        return  # Another package has its state there.
    remove_quietly(environment.lock)
    try:
        os.rmdir(environment.folder)
    except OSError:
        return  # That other run is at work.
    restore_stamps(stamps)


def label_of(state, installed):
    """What is there, in one word for people and for the head: a release's id, or a version."""
    if state.get("release"):
        return state["release"]
    if installed:
        return "%s %s" % (normalised(installed[0].name), installed[0].version)
    return ""


def switch(environment, state, names, incoming, new_state, check):
    """One transaction: the distributions of these names out, and (source, path) pairs in. `check`
    looks at the result, and its Failure undoes all."""
    token = new_state["token"]
    installed = [one for name in names for one in find_installed(environment, name)]
    files, edits = set(), {}
    for one in installed:
        its_files, its_edits = owned_files(environment, one)
        files |= its_files
        edits.update(its_edits)
    made, stage = [], environment.path("edit-" + token)
    for number, (path, text) in enumerate(sorted(edits.items())):
        if text is not None:
            os.makedirs(stage, exist_ok=True)
            edited = os.path.join(stage, str(number))
            with open(edited, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            copy_attributes(os.stat(path), edited)
            incoming = incoming + [[edited, path]]
    units = to_units(environment, files)
    pairs = place(environment, incoming, units, made)
    saved = environment.path("saved-" + token)
    os.makedirs(saved)
    out = [[path, os.path.join(saved, "%d-%s" % (number, os.path.basename(path)))]
           for number, path in enumerate(sorted(units))]
    parents = {os.path.dirname(path) for _, path in pairs} | {os.path.dirname(p) for p, _ in out}
    for path, _ in out:
        reason = why_not_writable(os.path.dirname(path))
        if reason:
            raise Failure(reason, "give the right to write there (-s installs with sudo)")
    stamps = folder_stamps(list(parents) + folders_below(units))
    new_state["saved"] = {
        "token": token, "label": label_of(state, installed), "units": out, "stamps": stamps,
        "state": {key: state.get(key) for key in
                  ("release", "package", "drop_in", "record", "dependencies", "holds")
                  if state.get(key)},
        "names": sorted({normalised(one.name) for one in installed})}
    new_state["units"] = [path for _, path in pairs]
    journal = {"schema": SCHEMA, "package": environment.package, "token": token, "out": out,
               "in": pairs, "made": made, "stamps": stamps, "prefix": environment.prefix}
    # All that an undo needs is there before the first move: the disk may be full by then.
    os.makedirs(environment.path("trash-" + token), exist_ok=True)
    write_file(environment.phase_back, "back")
    sync_file_system(environment.state_folder)
    remove_quietly(environment.phase)
    write_file(environment.journal, json.dumps(journal))
    try:
        for path, kept in out:
            move(path, kept)
        write_file(environment.phase, "in")
        for folder in made:
            os.mkdir(folder)
        for source, path in pairs:
            move(source, path)
        check(new_state)
        # Synced by the file, and with it every rename before: file systems keep their order.
        write_file(environment.path("state.json.next"), json.dumps(new_state, indent=1))
        os.rename(environment.path("state.json.next"), environment.path("state.json"))
        sync_folder(environment.state_folder)
    except BaseException:
        recover(environment)
        raise
    # Done: what follows is tidying up, and recover() does the same.
    try:
        recover(environment)
    except OSError as error:
        say(note="after the switch: %s" % error)
    return new_state


def place(environment, incoming, units, made):
    """Cuts what comes in into moves to free places. What is in the way and belongs to nobody we know
    goes out with the old, so that it can come back."""
    leaving = set(units)

    def goes(path):
        while len(path) > 1:
            if path in leaving:
                return True
            path = os.path.dirname(path)
        return False

    pairs = []

    def put(source, path):
        if goes(path) or not os.path.lexists(path):
            pairs.append([source, path])
        elif is_folder(source) and os.path.isdir(path):
            path = os.path.realpath(path)
            for name in sorted(os.listdir(source)):
                put(os.path.join(source, name), os.path.join(path, name))
        else:
            leaving.add(path)
            units.append(path)
            pairs.append([source, path])

    for source, path in incoming:
        folder, missing = os.path.dirname(path), []
        while goes(folder) or not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        made += [one for one in reversed(missing) if one not in made]
        put(source, path)
    return pairs


# ---- Running other programs


WATCHED = [False]  # Whether the end of standard input means that the head has left.


def head_left(wait=0.0):
    if not WATCHED[0]:
        time.sleep(wait)
        return False
    # Nothing is sent before wait_for_go(): what can be read is the end.
    return bool(select.select([0], [], [], wait)[0])


def watch_input(wait):
    if head_left(wait):
        raise HeadLeft()


def wait_for_go():
    """The head has seen the rows and says whether to go on."""
    if not WATCHED[0]:
        return
    if os.read(0, 1) == b"":
        raise HeadLeft()
    WATCHED[0] = False  # From here to the end, whoever may leave.


PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option, value):
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (AttributeError, OSError):
        pass  # A C library without it: what is killed leaves its children behind.


def die_with(parent):
    """For a new process: it ends when the worker does, however that ends."""
    def set_up():
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(126)
    return set_up


class Process:
    """In a group of its own; its output is kept from the end."""

    def __init__(self, argv, environment, seconds, keep=4000):
        self.keep = keep
        self.output = b""
        self.deadline = time.monotonic() + seconds
        self.status = None
        self.timed_out = False
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env=environment, cwd="/",
                                        start_new_session=True,
                                        preexec_fn=die_with(os.getpid()))
        os.set_blocking(self.process.stdout.fileno(), False)

    def drain(self):
        while True:
            try:
                piece = os.read(self.process.stdout.fileno(), 65536)
            except BlockingIOError:
                return
            if not piece:
                return
            self.output = (self.output + piece)[-self.keep:]

    def ended(self):
        self.drain()
        if self.status is None and self.process.poll() is None:
            if time.monotonic() < self.deadline:
                return False
            self.timed_out = True
        self.close()
        return True

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.status = self.process.wait()
        self.drain()
        self.process.stdout.close()

    def text(self):
        return self.output.decode("utf-8", "replace")


def run_all(starts, at_once):
    """Calls each start() to get a Process; at most so many at a time. In the given order."""
    waiting, running, done = list(enumerate(starts)), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, start = waiting.pop(0)
                running[number] = start()
            fds = [one.process.stdout.fileno() for one in running.values()]
            select.select(fds, [], [], 0.05)
            watch_input(0)
            for number in list(running):
                if running[number].ended():
                    done[number] = running.pop(number)
            if running:
                time.sleep(0.01)
    finally:
        for one in running.values():
            one.close()
    return [done[number] for number in sorted(done)]


def last_lines(text, count=1):
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return " / ".join(line.strip() for line in lines[-count:])[-400:]


def clean_environment():
    """pip's own settings (an index, a target, a required hash) must not decide what happens here."""
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("PIP_", "PYTHON"))}
    clean.update({"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1", "LC_ALL": "C.UTF-8",
                  "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"})
    return clean


# ---- Staging: pip, digests, our ops


def run_pip(environment, wheels, stage, seconds):
    temporary = environment.path("tmp")
    os.makedirs(temporary, exist_ok=True)
    variables = clean_environment()
    variables["TMPDIR"] = temporary
    argv = [sys.executable, "-I", "-m", "pip", "install", "--no-index", "--no-deps",
            "--no-cache-dir", "--ignore-installed", "--no-warn-script-location", "--root", stage]
    process = run_all([lambda: Process(argv + wheels, variables, seconds)], 1)[0]
    if process.timed_out:
        raise Failure("pip did not end within %d s" % seconds, "give it more time, or look at the "
                      "node's disk")
    if process.status != 0:
        text = process.text()
        errors = [line for line in text.split("\n") if line.startswith("ERROR: ")] or \
            [last_lines(text)]
        help_text = ""
        if "not a supported wheel" in text:
            help_text = "the wheel is for another Python; build it for this one, or name another " \
                        "with --python"
        elif "No space left" in text:
            help_text = "free space in %s" % environment.prefix
        elif "No module named pip" in text:
            help_text = "install pip there: %s -m ensurepip" % sys.executable
        raise Failure("pip failed: %s" % errors[0].replace("ERROR: ", ""), help_text)


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return base64.urlsafe_b64encode(digest.digest()).decode("ascii").rstrip("=")


def damage_of(info):
    """The first file that is not what the record of a dist-info says; empty: all are."""
    base = os.path.dirname(info)
    rows = record_rows(info)
    if not rows:
        return "%s has no RECORD" % info
    for row in rows:
        if len(row) < 2 or not row[1].startswith("sha256="):
            continue
        path = os.path.join(base, row[0])
        try:
            if digest_of(path) != row[1][len("sha256="):]:
                return "%s is altered: its SHA-256 is not the wheel's" % os.path.normpath(row[0])
        except OSError as error:
            if error.errno == errno.ENOENT:
                return "%s is missing" % os.path.normpath(row[0])
            raise
    return ""


def rewrite_record(info, changed, gone):
    """`changed`: paths relative to site-packages that are new or different."""
    base = os.path.dirname(info)
    rows = [row for row in record_rows(info) if row[0] not in changed and row[0] not in gone]
    for path in sorted(changed):
        full = os.path.join(base, path)
        rows.append([path, "sha256=" + digest_of(full), str(os.path.getsize(full))])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    with open(os.path.join(info, "RECORD"), "w", encoding="utf-8") as file:
        file.write(out.getvalue())


# ---- What is special to DeepSpeed


class DeepSpeed:
    """ds_report, and our ops under its names."""

    OPS_FOLDER = "deepspeed/ops/ds_install"
    REPORT = "from deepspeed.env_report import cli_main; sys.argv[1:] = []; cli_main()"
    BUILD_FILE = "deepspeed/git_version_info_installed.py"
    # Ops that use the symbols of another one's module: DeepSpeed's load() of the op loads that one
    # before, for all to see.
    LOADED_BEFORE = {"async_io": ["pin_memory"], "gds": ["pin_memory"]}

    def report_argv(self, first):
        code = PREAMBLE + self.REPORT
        return [sys.executable, "-I", "-B", "-c", code, first]

    def verdicts(self, text):
        """{op: (installed, compatible)} of what ds_report prints."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        return {name: (installed == "YES", compatible == "OKAY") for name, installed, compatible in
                re.findall(r"^(\w+)\s*\.+\s*\[(YES|NO)\]\s*\.+\s*\[(OKAY|NO)\]", plain, re.M)}

    def names(self, site):
        """The ops that this version has a builder for, on whatever accelerator."""
        found = set()
        for folder, _, files in os.walk(os.path.join(site, "deepspeed/ops/op_builder")):
            for name in files:
                if name.endswith(".py"):
                    found.update(re.findall(r"^    NAME = ['\"](\w+)['\"]",
                                            read_text(os.path.join(folder, name)), re.M))
        return found

    def modules(self, release, site):
        """{DeepSpeed's module: (our module, op)} of the ops that the release brings and this
        DeepSpeed has."""
        text = read_text(os.path.join(release, "python/ds_ops/deepspeed/__init__.py"))
        found = re.search(r"^MODULES = (\{.*?^\})", text, re.M | re.S)
        table = ast.literal_eval(found.group(1)) if found else {}
        names = self.names(site)
        return {module: (own, op) for own, (module, op) in table.items()
                if own in names and os.path.exists(os.path.join(release, "lib", "libds_%s.so" % op))}

    def drop_in(self, release, site, info, seconds):
        modules = self.modules(release, site)
        if not modules:
            raise Failure("the release has no op that can stand in for one of DeepSpeed's",
                          "build it with --drop-in and with ops that DeepSpeed has")
        changed, gone = set(), set()

        def write(path, text):
            with open(os.path.join(site, path), "w", encoding="utf-8") as file:
                file.write(text)
            changed.add(path)

        for folder in ("lib", "ops", "python"):
            source = os.path.join(release, folder)
            for below, _, names in os.walk(source):
                for name in names:
                    full = os.path.join(below, name)
                    path = os.path.join(self.OPS_FOLDER, os.path.relpath(full, release))
                    os.makedirs(os.path.dirname(os.path.join(site, path)), exist_ok=True)
                    shutil.copyfile(full, os.path.join(site, path))
                    os.chmod(os.path.join(site, path), 0o644)
                    changed.add(path)
        write(self.OPS_FOLDER + "/__init__.py", '"""Ops that ds-install --drop-in put here."""\n')
        write(self.OPS_FOLDER + "/python/__init__.py", "")
        package = self.OPS_FOLDER.replace("/", ".") + ".python.ds_ops.deepspeed."
        builders = []
        for module, (own, op) in sorted(modules.items()):
            path = module.replace(".", "/")
            folder, name = os.path.split(path)
            # Some modules are compiled into a folder that has no source file.
            os.makedirs(os.path.join(site, folder), exist_ok=True)
            for entry in os.listdir(os.path.join(site, folder)):
                # A compiled module would be found before ours.
                if entry.startswith(name + ".") and entry.endswith((".so", ".py")):
                    os.unlink(os.path.join(site, folder, entry))
                    gone.add(os.path.join(folder, entry))
            text = '"""The op %s of ds-install under DeepSpeed\'s name."""\n' \
                "from %s%s import *  # noqa: F401,F403\n" % (op, package, own)
            if any(own in before for before in self.LOADED_BEFORE.values()):
                text += "# DeepSpeed would open it as a library.\n__file__ = None\n"
            write(path + ".py", text)
            builders.append(own)
        self.mark_installed(site, builders, changed, seconds)
        rewrite_record(info, changed, gone - changed)
        return sorted(changed)

    def mark_installed(self, site, ops, changed, seconds):
        """DeepSpeed loads a module that is installed only if it was made for the accelerator that
        is there. Ours are for whatever is; what the wheel brings for another one is not."""
        code = PREAMBLE + "from deepspeed.accelerator import get_accelerator\n" \
            "print(get_accelerator()._name)"
        process = run_all([lambda: Process([sys.executable, "-I", "-B", "-c", code, site],
                                           clean_environment(), seconds)], 1)[0]
        here = last_lines(process.text()) if process.status == 0 else ""
        path = os.path.join(site, self.BUILD_FILE)
        text = read_text(path)
        lines = [text.rstrip("\n") if text else "installed_ops = {}", "",
                 "# By ds-install --drop-in.", "_ours = %r" % sorted(ops)]
        built_for = re.search(r"^accelerator_name\s*=\s*['\"](\w*)", text, re.M)
        if built_for and re.match(r"^\w+$", here) and built_for.group(1) != here:
            lines += ["accelerator_name = %r" % here,
                      "installed_ops.update({op: False for op in installed_ops})"]
        lines.append("installed_ops.update({op: True for op in _ours})")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        changed.add(self.BUILD_FILE)


SPECIALS = {"deepspeed": DeepSpeed}


# ---- Trying the modules

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
            if path and not path.startswith(("/proc/", "/sys/", "/dev/"))}
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


# ---- What an answer rests on

REPORTED_AT_MOST = 400000  # Of text; the agent keeps no more of an answer than a MiB.


def verified_files(infos):
    """Files whose digest every report compares: they need no stamp."""
    return {os.path.normpath(os.path.join(os.path.dirname(info), row[0]))
            for info in infos for row in record_rows(info)
            if len(row) > 1 and row[1].startswith("sha256=")}


def tell_what_it_rests_on(files, own=()):
    """`own`: what this run has made or changed itself."""
    def by_folder(paths):
        found = {}
        for path in sorted(paths):
            folder, name = os.path.split(path)
            found.setdefault(folder, []).append(name)
        return found

    told = {"files": by_folder(files), "own": by_folder(own)}
    if len(json.dumps(told)) < REPORTED_AT_MOST:
        say(rests_on=told)


class Beside:
    """What a trial beside site-packages rests on, to be told of the places where all that is once it
    has been switched. Nothing is told if it is not there as it was tried."""

    def __init__(self, environment, stage):
        self.stage = stage
        self.shared = set(environment.sites()) | {os.path.dirname(environment.site)}
        self.before = {folder: set(os.listdir(folder)) for folder in self.shared}

    def tried(self, files, infos):
        self.known = files.known
        staged = {path for path in files.paths if path.startswith(self.stage + os.sep)}
        self.others = files.paths - staged - self.shared
        self.staged = {self.place(path): self.identity(path)
                       for path in staged - verified_files(infos)}

    def place(self, path):
        return path[len(self.stage):]

    def identity(self, path):
        if is_folder(path):
            return sorted(os.listdir(path))
        status = os.stat(path)
        return [status.st_ino, status.st_size, status.st_mtime_ns]

    def tell(self, out, incoming):
        """`out`, `incoming`: the paths that have left and those that came."""
        went = tuple(path + os.sep for path in out)
        if not self.known or any((path + os.sep).startswith(went) for path in self.others):
            return
        for folder in self.shared:
            left = {os.path.basename(path) for path in out if os.path.dirname(path) == folder}
            came = {os.path.basename(path) for path in incoming if os.path.dirname(path) == folder}
            if set(os.listdir(folder)) != (self.before[folder] - left) | came:
                return
        try:
            same = all(path in self.shared or self.identity(path) == then
                       for path, then in self.staged.items())
        except OSError:
            return
        if same:
            tell_what_it_rests_on(self.others, set(self.staged) | self.shared)


# ---- What is asked for


def read_release(folder):
    try:
        manifest = read_json(os.path.join(folder, "manifest.json"))
    except (Failure, OSError):
        manifest = None
    if not manifest or not manifest.get("packages"):
        raise Failure("the release in %s has no package" % folder)
    return manifest["packages"]


def wheel_identity(path):
    parts = os.path.basename(path).split("-")
    return normalised(parts[0]), parts[1]


def same_record(environment, name, digest):
    found = find_installed(environment, name)
    return len(found) == 1 and record_digest(found[0]) == digest


def record_digest(one):
    path = os.path.join(one.path, "RECORD")
    return digest_of(path) if one.kind == "dist-info" and os.path.exists(path) else ""


def is_held(state, name, there):
    """Whether the dependency that is there is the one that came with the package."""
    digest = (state.get("holds") or {}).get(name)
    return bool(digest) and len(there) == 1 and record_digest(there[0]) == digest


def brought_along(environment, package, state):
    """(name, what is installed of it) of the dependencies that came with the package."""
    for wheel in package.get("dependencies", []):
        name = wheel_identity(wheel)[0]
        there = find_installed(environment, name)
        if is_held(state, name, there):
            yield name, there


def damage_of_dependencies(environment, package, state):
    """The first fault of what came along with the package, or should have; empty: none."""
    for wheel in package.get("dependencies", []):
        name, version = wheel_identity(wheel)
        if not find_installed(environment, name):
            return "%s %s, which %s requires, is missing" % (name, version, package["name"])
    for name, there in brought_along(environment, package, state):
        fault = damage_of(there[0].path)
        if fault:
            return "%s, which came with %s: %s" % (name, package["name"], fault)
    return ""


def new_token():
    return base64.b16encode(os.urandom(8)).decode("ascii").lower()


def with_history(state, action, arguments, origin, to):
    history = list(state.get("history", []))
    history.append({"action": action, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "run": arguments.run, "by": arguments.by, "from": origin, "to": to})
    return history[-KEPT_HISTORY:]


def copy_program(environment):
    """So that a transaction can be undone with nothing but the environment."""
    with open(os.path.abspath(__file__), encoding="utf-8") as file:
        text = file.read()
    if read_text(environment.path("ds-package")) != text:
        write_file(environment.path("ds-package"), text)


def name_of(info):
    return normalised(os.path.basename(info)[:-len(".dist-info")].rpartition("-")[0])


def staged_infos(stage):
    found = []
    for folder, names, _ in os.walk(stage):
        found += [os.path.join(folder, name) for name in names if name.endswith(".dist-info")]
        names[:] = [name for name in names if not name.endswith(".dist-info")]
    return sorted(found)


def install(environment, arguments):
    packages = read_release(arguments.release)
    package = packages[0]
    state = read_state(environment)
    installed = find_installed(environment, package["name"])
    before = label_of(state, installed)
    if state.get("release") and not same_record(environment, package["name"],
                                                state.get("record")):
        # Something else has replaced what we installed.
        state = {key: state[key] for key in ("history", "holds") if key in state}
        before = label_of(state, installed)
    wheels, names, held = [], [], {}
    for one in packages:
        for wheel in [one["wheel"]] + one.get("dependencies", []):
            name, version = wheel_identity(wheel)
            there = find_installed(environment, name)
            if name != package["name"] and [one.version for one in there] == [version]:
                # A dependency that the environment has. Only what we brought is ours to mend.
                ours = is_held(state, name, there)
                if not ours or not damage_of(there[0].path):
                    held.update({name: state["holds"][name]} if ours else {})
                    continue
            wheels.append(os.path.join(arguments.release, wheel))
            names.append(name)
    # Whatever cannot be moved away later is refused now.
    for name in names:
        for one in find_installed(environment, name):
            owned_files(environment, one)
    needed = sum(os.path.getsize(wheel) for wheel in wheels)
    needed += needed // 4 + (4 << 20)
    space = os.statvfs(environment.site)
    free = space.f_bavail * space.f_frsize
    if free < needed:
        raise Failure("%s has %s bytes free; the package needs %s" %
                      (environment.site, "{:,}".format(free), "{:,}".format(needed)),
                      "free space there, or name another environment with --python")
    token = arguments.token
    stage = environment.path("stage-" + token)
    os.makedirs(stage)
    run_pip(environment, wheels, stage, arguments.pip_timeout)
    infos = staged_infos(stage)
    mine = [info for info in infos
            if name_of(info) == package["name"]]
    if len(mine) != 1:
        raise Failure("the wheel %s does not install %s" % (package["wheel"], package["name"]))
    for info in infos:
        fault = damage_of(info)
        if fault:
            raise Failure("pip did not install what the wheel holds: " + fault,
                          "look for a failing disk on this node")
    info = mine[0]
    first = os.path.dirname(info)
    if os.path.realpath(first[len(stage):]) not in environment.sites():
        raise Failure("pip installs into %s and not into %s" % (first[len(stage):],
                                                               environment.site))
    if arguments.drop_in:
        if package["name"] not in SPECIALS:
            raise Failure("--drop-in is for %s; %s has no ops of ours" %
                          (", ".join(sorted(SPECIALS)), package["name"]))
        SPECIALS[package["name"]]().drop_in(arguments.release, first, info,
                                              arguments.module_timeout)
        package = dict(package, modules=special_modules(package, arguments.release, first))
        compile_again(first)
    say(stage="installed beside")
    beside = Beside(environment, stage)
    rows, faults, report, files = try_modules(package, first, top_levels(info),
                                       arguments.module_timeout)
    beside.tried(files, infos)
    say(stage="probed", ops=rows, ds_report=report)
    if faults:
        raise Failure(faults[0], "nothing was changed; install what is missing on the node, or send "
                      "it too with --with-deps")
    wait_for_go()
    repair = state.get("release") == arguments.release_id and \
        bool(state.get("drop_in")) == arguments.drop_in
    action = "repair" if repair else "install"
    came = set(names) - {package["name"]}
    new_state = {"schema": SCHEMA, "token": token, "release": arguments.release_id,
                 "package": package, "drop_in": arguments.drop_in, "record": "",
                 # What a rollback takes away: a repair is part of the install that it repairs.
                 "dependencies": sorted(came | set(state.get("dependencies") or [] if repair
                                                   else [])),
                 "holds": held,
                 "history": with_history(state, action, arguments, before, arguments.release_id)}
    new_state["record"] = digest_of(os.path.join(info, "RECORD"))
    new_state["holds"].update({name_of(one): digest_of(os.path.join(one, "RECORD"))
                               for one in infos if one != info})
    older = state.get("saved") if repair else None
    out = []

    def check(after):
        out.extend(path for path, _ in after["saved"]["units"])
        check_in_place(environment, package, [info[len(stage):] for info in infos], arguments)
        if older:
            # The same again: what rollback goes back to stays what it was.
            after["saved"] = older

    give_to_owner(environment, stage)
    switch(environment, state, names, [[stage, os.sep]], new_state, check)
    beside.tell(out, new_state["units"])
    say(result=RESULTS[action], origin=before, to=arguments.release_id,
        previous=new_state["saved"]["label"])


def special_modules(package, release, site):
    """The modules of the wheel, and those that only our ops give it."""
    modules = {module["name"]: module for module in package.get("modules", [])}
    special = SPECIALS[package["name"]]()
    for name, (own, _) in special.modules(release, site).items():
        modules.setdefault(name, {"name": name, "op": own})
    return [modules[name] for name in sorted(modules)]


def compile_again(site):
    """pip has compiled the wheel's files; ours and the changed ones are compiled here."""
    import compileall
    compileall.compile_dir(os.path.join(site, "deepspeed"), quiet=2)


def check_in_place(environment, package, infos, arguments):
    """The switched environment: every file by its digest, and one process that finds the package
    there. The modules were tried before."""
    for info in infos:
        fault = damage_of(info)
        if fault:
            raise Failure("after the switch, " + fault, "look for what changes files in %s"
                          % environment.site)
    names = top_levels(infos[0])
    for info in infos:
        if name_of(info) == package["name"]:
            names = top_levels(info)
    code = PREAMBLE + "import importlib.util, json\n" \
        "print(json.dumps([importlib.util.find_spec(n).origin for n in sys.argv[2:]]))"
    process = run_all([lambda: Process([sys.executable, "-I", "-B", "-c", code, ""] + names,
                                       clean_environment(), arguments.module_timeout)], 1)[0]
    try:
        origins = json.loads(last_lines(process.text()))
    except ValueError:
        raise Failure("after the switch, Python does not find %s: %s" %
                      (", ".join(names), last_lines(process.text())))
    for name, origin in zip(names, origins):
        if os.path.realpath(origin or "").startswith(environment.site + os.sep) or \
                os.path.realpath(origin or "").startswith(environment.pure + os.sep):
            continue
        raise Failure("after the switch, Python finds %s at %s" % (name, origin),
                      "something comes before %s on its path: remove it there" % environment.site)


def rollback(environment, arguments):
    state = read_state(environment)
    saved = state.get("saved")
    if not saved or not saved["label"]:
        raise Failure("there is nothing to go back to",
                      "install the version that you want by name")
    package = state.get("package") or saved["state"].get("package") or {}
    installed = find_installed(environment, environment.package)
    before = label_of(state, installed)
    if state.get("release") and not same_record(environment, environment.package,
                                                state.get("record")):
        raise Failure("%s was changed since by something else" % environment.package,
                      "install the version that you want by name")
    incoming = [[kept, path] for path, kept in saved["units"]]
    for kept, path in incoming:
        if not os.path.lexists(kept):
            raise Failure("%s, which was kept for a rollback, is gone" % kept,
                          "install the version that you want by name")
    names = sorted(set(saved["names"]) | {environment.package} |
                   set(state.get("dependencies") or []))
    new_state = {"schema": SCHEMA, "token": arguments.token, "release": "",
                 "package": package}
    new_state.update(saved["state"])
    new_state["history"] = with_history(state, "rollback", arguments, before, saved["label"])

    def check(_):
        restore_stamps(saved["stamps"])

    after = switch(environment, state, names, incoming, new_state, check)
    rows = []
    found = find_installed(environment, environment.package)
    if found and found[0].kind == "dist-info" and new_state.get("release"):
        rows, _, _, _ = try_modules(new_state["package"], "", [], arguments.module_timeout)
    say(stage="probed", ops=rows)
    say(result="rolled-back", origin=before, to=label_of(after, found))


def uninstall(environment, arguments):
    state = read_state(environment)
    installed = find_installed(environment, environment.package)
    before = label_of(state, installed)
    if installed and not same_record(environment, environment.package, state.get("record")):
        raise Failure("the %s in %s was not installed by ds-install" %
                      (before if not state.get("release") else environment.package,
                       environment.prefix), "remove it with pip: %s -m pip uninstall %s" %
                      (sys.executable, environment.package))
    if installed:
        new_state = {"schema": SCHEMA, "token": arguments.token, "release": "",
                     "history": with_history(state, "uninstall", arguments, before, "")}

        def check(after):
            after["saved"] = None

        switch(environment, state, [environment.package], [], new_state, check)
    elif not is_empty(state):
        # Something else has removed it; what was kept for a rollback goes as well.
        os.unlink(environment.path("state.json"))
    say(result="uninstalled", origin=before, to="")


def report(environment, arguments):
    state = read_state(environment)
    installed = find_installed(environment, environment.package)
    label = label_of(state, installed)
    if not installed:
        raise Failure("%s is not installed in %s" % (environment.package, environment.prefix),
                      "install it, or name another environment with --python")
    damage, package = "", state.get("package")
    intact = bool(state.get("release")) and \
        same_record(environment, environment.package, state.get("record"))
    if not intact or not package:
        label = label_of({}, installed)
        package = {"name": environment.package, "modules": []}
    if installed[0].kind == "dist-info":
        damage = damage_of(installed[0].path)
    damage = damage or damage_of_dependencies(environment, package, state)
    names = top_levels(installed[0].path)
    rows, faults, verdicts = [], [], {}
    if not arguments.untried:
        rows, faults, verdicts, files = try_modules(package, "", names, arguments.module_timeout)
    say(stage="probed", ops=rows, ds_report=verdicts)
    intact = intact and not damage
    if intact and not arguments.untried and files.known and not faults:
        infos = [installed[0].path] + [there[0].path for name, there in
                                       brought_along(environment, package, state)]
        tell_what_it_rests_on(files.paths - verified_files(infos))
    say(result="reported", origin=label, to=label, damage=damage or (faults + [""])[0],
        intact=intact, drop_in=bool(state.get("drop_in")))


def recover_command(environment, arguments):
    say(result="recovered" if RECOVERED[0] else "nothing to recover",
        to=label_of(read_state(environment), find_installed(environment, environment.package)))


def settle(environment, arguments):
    """After the worker of this run was killed and its transaction undone, unless it had ended."""
    state = read_state(environment)
    if arguments.asked == "uninstall" and not state and \
            not find_installed(environment, environment.package):
        say(result=RESULTS["uninstall"], origin="", to="")  # The state had gone, too.
        return COMMITTED
    if state.get("token") != arguments.token:
        return 0
    last = state["history"][-1]
    say(result=RESULTS[last["action"]], origin=last["from"], to=last["to"])
    return COMMITTED


RECOVERED = [False]
RESULTS = {"install": "installed", "repair": "repaired", "rollback": "rolled-back",
           "uninstall": "uninstalled"}
COMMANDS = {"install": install, "rollback": rollback, "uninstall": uninstall, "report": report,
            "recover": recover_command, "settle": settle}


def lock_for(environment, arguments):
    """None: nothing of ours is there, or this user may only look."""
    changes = arguments.command in ("install", "rollback", "uninstall")
    if changes:
        check_writable(environment)
    elif not os.path.isdir(environment.folder) or why_not_writable(environment.folder):
        return None
    lock = Lock(environment, arguments.lock_timeout, shared=arguments.command == "report")
    if not lock.exclusive and is_there(environment.journal):
        lock.close()
        lock = Lock(environment, arguments.lock_timeout)
    if lock.exclusive:
        lock.name("run %s of %s" % (arguments.run, arguments.by))
        RECOVERED[0] = recover(environment)
        if RECOVERED[0] and arguments.command != "settle":
            say(note="an interrupted install was undone")
    if changes:
        os.makedirs(environment.state_folder, mode=0o755, exist_ok=True)
        copy_program(environment)
    return lock


def work(arguments):
    """In the worker. Returns the exit status."""
    environment = Environment(arguments.package)
    try:
        lock = lock_for(environment, arguments)
        try:
            return COMMANDS[arguments.command](environment, arguments) or 0
        finally:
            if lock is not None and lock.exclusive:
                leave(environment)
    except Failure as failure:
        say(error={"what": failure.what, "help": failure.help})
        if isinstance(failure, Busy):
            return BUSY
    except OSError as error:
        where = " (%s)" % error.filename if error.filename else ""
        help_text = {errno.ENOSPC: "free space in %s" % environment.prefix,
                     errno.EROFS: "the file system of %s is read-only" % environment.prefix,
                     errno.EACCES: "give the right to write there (-s installs with sudo)"}
        say(error={"what": "%s%s" % (error.strerror or error, where),
                   "help": help_text.get(error.errno, "")})
    return 1


def leave(environment):
    """What a run that did nothing has made goes again, and so does what an uninstall has left."""
    try:
        if read_json(environment.journal) is not None:
            return
        state = read_state(environment)
    except (Failure, OSError):
        return  # What it tells of may be all that there is of the old package.
    prune(environment, state)
    if is_empty(state):
        remove_state(environment)
        remove_folder(environment)
    else:
        give_to_owner(environment, environment.folder)


# ---- The two processes

WORKER = [0]
CANCELLED = [False]


def cancel(*_):
    CANCELLED[0] = True
    if WORKER[0]:
        os.kill(WORKER[0], signal.SIGKILL)


def supervise(arguments):
    """Waits for the worker. If it is killed, another one puts back what it had moved."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, cancel)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    command, journal = arguments.command, Environment(arguments.package).journal
    ended = run_worker(arguments)
    killed = os.WIFSIGNALED(ended)
    code = 1 if killed else os.WEXITSTATUS(ended)
    if not killed and (code in (0, BUSY) or not os.path.lexists(journal)):
        return 1 if code == BUSY else code
    arguments.asked, arguments.command, arguments.lock_timeout = command, "settle", 60
    WATCHED[0] = False
    status = run_worker(arguments, aside=True)
    settled = 1 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    if settled == COMMITTED:
        return 0
    if settled == BUSY:
        # Whoever has the lock settles what others have left, before anything else.
        what = "another run is at work there now, and puts back first what was there"
    else:
        what = "the environment is as it was" if settled == 0 else \
            "run it again: what is half done there is settled first"
    if CANCELLED[0] and killed:
        say(error={"what": "%s was cancelled" % command, "help": what})
    elif killed:
        say(error={"what": "%s was killed by %s" % (command, signal_name(os.WTERMSIG(ended))),
                   "help": what})
    elif code != 0 and settled not in (0, BUSY):
        say(error={"what": "%s failed, and what it had moved could not be put back: the environment "
                           "is half-way (%s)" % (command, journal),
                   "help": "mend what the error before names, then run it again: that puts back "
                           "what was there"})
    return code


def run_worker(arguments, aside=False):
    """waitpid's status. `aside`: what it has to say but for a result is the reader's no more."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            QUIET[0] = aside
            status = work(arguments)
        except BaseException as error:  # A bug; say so and leave no process behind.
            say(error={"what": "%s: %s" % (type(error).__name__, error), "help": ""})
            status = 70
        finally:
            os._exit(status)
    if not aside:
        WORKER[0] = pid
        if CANCELLED[0]:
            cancel()
    # Its number is its own until it is waited for; a cancel may come until then.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    WORKER[0] = 0
    status = os.waitpid(pid, 0)[1]
    end_family()
    return status


def end_family():
    """Kills what the worker had started and could not end itself: it is our child now."""
    deadline = time.monotonic() + 10  # What waits for a dead disk cannot be killed.
    while time.monotonic() < deadline:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def descendants():
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            # "PID (any name) S PARENT ..."
            fields = read_text("/proc/%s/stat" % name).rpartition(")")[2].split()
            if len(fields) > 1:
                parents[int(name)] = int(fields[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def main():
    global ANSWER
    ANSWER = find_answer_fd()
    parser = argparse.ArgumentParser(prog="ds-package", description=__doc__.split("\n\n")[0])
    parser.add_argument("command", choices=sorted(set(COMMANDS) - {"settle"}))
    parser.add_argument("--release", help="the folder of the release")
    parser.add_argument("--release-id", default="")
    parser.add_argument("--package", help="normalised name")
    parser.add_argument("--drop-in", action="store_true")
    parser.add_argument("--untried", action="store_true",
                        help="report: whether all is whole; no module is imported")
    parser.add_argument("--run", default=BY_HAND)
    parser.add_argument("--by", default="")
    parser.add_argument("--module-timeout", type=int, default=120)
    parser.add_argument("--pip-timeout", type=int, default=600)
    parser.add_argument("--lock-timeout", type=int, default=30)
    parser.add_argument("--ask", action="store_true",
                        help="wait for a byte on standard input before the switch")
    arguments, unknown = parser.parse_known_args()
    # The agent may be of a later ds-install than this copy, which wrote what it is to undo. What is
    # new since then was made so that it can be left out.
    if unknown and arguments.run == BY_HAND:
        parser.error("unknown: " + " ".join(unknown))
    arguments.token = new_token()
    WATCHED[0] = arguments.ask
    try:
        if arguments.command == "install":
            if not arguments.release:
                parser.error("install needs --release")
            arguments.release = os.path.abspath(arguments.release)
            arguments.package = read_release(arguments.release)[0]["name"]
        elif not arguments.package:
            # As kept in the environment: the folder is the package's.
            arguments.package = os.path.basename(os.path.dirname(os.path.abspath(__file__)))
        if not re.match(r"^[a-z0-9]+(-[a-z0-9]+)*$", arguments.package):
            raise Failure("\"%s\" is no normalised name of a package" % arguments.package)
    except Failure as failure:
        say(error={"what": failure.what, "help": failure.help})
        return 1
    return supervise(arguments)


if __name__ == "__main__":
    sys.exit(main())
