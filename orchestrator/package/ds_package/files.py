"""Files: moves that can be undone."""

import ctypes
import errno
import json
import os
import shutil
import stat

from ds_package.answers import Failure, PARTIAL


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


def write_file(path, content):
    """Text or bytes: the old ones or the new ones, also after a power cut."""
    partial = path + ".partial"
    try:
        with open(partial, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8"))
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


def remove_quietly(path):
    try:
        remove(path)
    except OSError:
        pass  # In nobody's way; the next run tries again.
