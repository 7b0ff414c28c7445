"""Theano's compile directory: one per run, warmed from a shared cache.

Theano compiles C++ modules into a directory guarded by a lock file. A directory shared between processes
makes runs wait for one another, and a lock left behind by a dead process on another host blocks them for
good. So each run has a directory of its own: :func:`prepare` fills it from the cache before Theano is
imported, :func:`publish` adds newly compiled modules to the cache, and :func:`discard` removes the run's
directory.

The cache is safe against concurrent runs and crashes: a module appears by the rename of a complete, synced
folder; nothing in it is ever written again; files that Theano rewrites (the keys) are copied, compiled
modules are hard links. Theano unpickles the keys, so a cache that belongs to another user or that others may
write to is not used.
"""

import atexit
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from typing import Iterator, List, Optional, Tuple

_LOG = logging.getLogger(__name__)

#: Environment variable naming the run's base compile directory, set by ``environment``.
VARIABLE = "CROSSTRAIN_THEANO_COMPILEDIR"
#: Environment variable naming the folder of Crosstrain's caches.
CACHE_VARIABLE = "CROSSTRAIN_CACHE"

#: Extensions that Theano builds outside its module cache.
_EXTENSIONS = ("cutils_ext", "lazylinker_ext")
_PARTIAL = ".partial-"
#: A partial folder older than this, seconds, was left by a process that died.
_PARTIAL_AGE = 3600.0
#: Settings that do not change what is compiled.
_IRRELEVANT = ("base_compiledir=", "compile.", "device=", "floatX=", "optimizer=", "deterministic=")


def cache_folder() -> str:
    """Folder of the cache for this Theano, NumPy, Python and these THEANO_FLAGS; need not exist."""
    root = os.environ.get(CACHE_VARIABLE)
    if not root:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(base, "crosstrain")
    facts = [sys.version, _package_file("theano", "_version.py"), _package_file("numpy", "version.py")]
    flags = os.environ.get("THEANO_FLAGS", "").split(",")
    facts += sorted(flag for flag in flags if not flag.startswith(_IRRELEVANT))
    digest = hashlib.sha256("\n".join(facts).encode("utf-8")).hexdigest()
    return os.path.join(root, "theano-" + digest[:16])


def _package_file(package: str, name: str) -> str:
    """Text of the file that holds a package's version, read without importing the package."""
    found = importlib.util.find_spec(package)
    path = os.path.join(os.path.dirname(found.origin), name) if found is not None and found.origin else ""
    if not os.path.isfile(path):
        return "unknown"
    with open(path, encoding="utf-8") as file:
        return file.read()


def prepare() -> int:
    """Fills the run's compile directory from the cache and returns the number of modules put there.

    To be called before Theano is imported. Does nothing without :data:`VARIABLE`. A cache that cannot be read
    costs time only, so every failure is logged and otherwise ignored.
    """
    base = os.environ.get(VARIABLE)
    if not base:
        return 0
    os.makedirs(base, mode=0o700, exist_ok=True)
    # Theano tidies its directory at exit too; what is registered first is called last.
    atexit.register(_discard, base)
    cache = cache_folder()
    if not _trusted(cache):
        return 0
    count = 0
    for platform in _folders(cache):
        for module in _folders(os.path.join(cache, platform)):
            target = os.path.join(base, platform, module)
            if module.startswith(_PARTIAL) or os.path.exists(target):
                continue
            try:
                _copy_module(os.path.join(cache, platform, module), target, renew=True)
                count += 1
            except OSError as error:
                shutil.rmtree(target, ignore_errors=True)
                _LOG.warning("a compiled module could not be taken from the cache: %s", error.strerror)
    return count


def noted(what: str, compiledir: str) -> bool:
    """Whether the cache has held, since :func:`note`, all that ``what`` compiles."""
    return os.path.exists(_note(what, compiledir))


def note(what: str, compiledir: str) -> None:
    """Notes that all that ``what`` compiles has been published."""
    try:
        with open(_note(what, compiledir), "w"):
            pass
    except OSError as error:
        _LOG.warning("compiled modules could not be noted in the cache: %s", error.strerror)


def _note(what: str, compiledir: str) -> str:
    name = "complete-" + hashlib.sha256(what.encode("utf-8")).hexdigest()[:24]
    return os.path.join(cache_folder(), os.path.basename(compiledir), name)


def take(source: str, target: str) -> int:
    """Puts modules of another process's compile directory into this one's; returns how many.

    To be called while the other process compiles nothing. A failure costs time only.
    """
    count = 0
    for module in _folders(source):
        if _identity(os.path.join(source, module)) is None or os.path.exists(os.path.join(target, module)):
            continue
        try:
            _copy_module(os.path.join(source, module), os.path.join(target, module), renew=True)
            count += 1
        except OSError as error:
            shutil.rmtree(os.path.join(target, module), ignore_errors=True)
            _LOG.warning("a compiled module could not be taken from rank 0: %s", error.strerror)
    return count


def publish(compiledir: str) -> int:
    """Adds modules compiled in ``compiledir`` (Theano's, inside the run's base) to the cache.

    Returns how many were added. To be called while no compilation is going on. Leaves everything to the other
    process if one is publishing already. A failure is logged and otherwise ignored.
    """
    base = os.environ.get(VARIABLE)
    if not base or os.path.dirname(os.path.abspath(compiledir)) != os.path.abspath(base):
        return 0
    try:
        return _publish(compiledir, cache_folder())
    except OSError as error:
        _LOG.warning("compiled modules could not be added to the cache: %s", error.strerror)
        return 0


def _discard(base: str) -> None:
    shutil.rmtree(base, ignore_errors=True)


def _publish(compiledir: str, cache: str) -> int:
    os.makedirs(os.path.dirname(cache), exist_ok=True)
    if not os.path.isdir(cache):
        os.makedirs(cache, mode=0o700, exist_ok=True)
    if not _trusted(cache):
        return 0
    platform = os.path.join(cache, os.path.basename(compiledir))
    os.makedirs(platform, mode=0o700, exist_ok=True)
    with open(os.path.join(cache, "lock"), "w") as lock:
        try:
            # Held by the process, not by the file: it ends with the process, however that ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        _remove_partial(platform)
        known = {_identity(os.path.join(platform, name)) for name in _folders(platform)}
        added = 0
        for name in _folders(compiledir):
            source = os.path.join(compiledir, name)
            target = os.path.join(platform, name)
            identity = _identity(source)
            if identity is None or identity in known or os.path.exists(target):
                continue
            partial = tempfile.mkdtemp(prefix=_PARTIAL, dir=platform)
            _copy_module(source, os.path.join(partial, name), sync=True)
            os.rename(os.path.join(partial, name), target)
            os.rmdir(partial)
            known.add(identity)
            added += 1
        return added


def _identity(folder: str) -> Optional[str]:
    """What a complete module folder holds; None if it is no such folder.

    Theano names a module by the hash of its source and compiler options.
    """
    name = os.path.basename(folder)
    files = _files(folder)
    modules = [file for file in files if file.endswith(".so")]
    if len(modules) != 1:
        return None
    if name in _EXTENSIONS:
        return name
    return modules[0] if name.startswith("tmp") and "key.pkl" in files else None


def _copy_module(source: str, target: str, renew: bool = False, sync: bool = False) -> None:
    """Copies a module folder: compiled modules as hard links where possible, other files as they are."""
    os.makedirs(target, mode=0o700)
    for name in _files(source):
        if not name.endswith((".so", ".pkl", ".py")):
            continue
        old, new = os.path.join(source, name), os.path.join(target, name)
        if not name.endswith(".so") or not _link(old, new):
            shutil.copyfile(old, new)
        if renew:
            # Theano throws away modules that were not used for some weeks.
            os.utime(new)
        if sync:
            _sync(new)
    if sync:
        _sync(target)


def _link(old: str, new: str) -> bool:
    try:
        os.link(old, new)
    except OSError:
        return False
    return True


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_partial(platform: str) -> None:
    for name in _folders(platform):
        path = os.path.join(platform, name)
        if name.startswith(_PARTIAL) and time.time() - os.stat(path).st_mtime > _PARTIAL_AGE:
            shutil.rmtree(path, ignore_errors=True)


def _trusted(folder: str) -> bool:
    """Whether the folder exists and only this user can write to it."""
    try:
        status = os.stat(folder)
    except OSError:
        return False
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    if not private:
        _LOG.warning("the cache of compiled modules is not used: other users may write to it")
    return private


def _entries(folder: str) -> Iterator[Tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        found = []
    return iter(sorted(found))


def _folders(folder: str) -> List[str]:
    return [name for name, is_folder in _entries(folder) if is_folder]


def _files(folder: str) -> List[str]:
    return [name for name, is_folder in _entries(folder) if not is_folder]
