"""What is installed: distributions, their records and their files."""

import csv
import io
import os
import re

from ds_package.answers import Failure, normalised
from ds_package.files import is_folder


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
