"""What an answer rests on."""

import json
import os

from ds_package.answers import say
from ds_package.files import is_folder
from ds_package.installed import record_rows

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
        """None: something was looked for there in vain."""
        try:
            if is_folder(path):
                return sorted(os.listdir(path))
            status = os.stat(path)
            return [status.st_ino, status.st_size, status.st_mtime_ns]
        except OSError:
            return None

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
        if all(path in self.shared or self.identity(path) == then
               for path, then in self.staged.items()):
            tell_what_it_rests_on(self.others, set(self.staged) | self.shared)
