"""The Python environment of the interpreter that runs this."""

import os
import sys
import sysconfig

from ds_package.answers import Failure


def program():
    """The path of this program, all of which is in one file."""
    return os.path.abspath(sys.argv[0])


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
