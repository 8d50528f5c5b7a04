"""What a machine can lack or refuse, in words: descriptors, space, memory, threads. None of it is a fault of ours.

For a file that could not be written, `rows.disk` adds the place and the free space.
"""

from __future__ import annotations

import errno

NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
OF_THE_PROCESS = NO_DESCRIPTORS | {errno.EAGAIN, errno.ENOMEM}  # no file is at fault
# Problem and remedy by errno, of a file that cannot be written.
ADVICE = {
    errno.ENOSPC: ("no space is left", "free some space there or choose another --out"),
    errno.EDQUOT: ("the disk quota is used up", "free some space there or choose another --out"),
    errno.EROFS: ("the file system is read-only", "mount it for writing or choose another --out"),
    errno.EACCES: ("permission is denied", "allow writing there or choose another --out"),
    errno.EPERM: ("permission is denied", "allow writing there or choose another --out"),
    errno.ENOENT: ("the folder is gone", "do not touch run folders during a run"),
    errno.ENOTDIR: ("the folder is gone", "do not touch run folders during a run"),
    errno.EMFILE: ("no file descriptor is left to this process", "raise its limit (ulimit -n)"),
    errno.ENFILE: (
        "no file descriptor is left on this machine",
        "raise fs.file-max, or end what has them open",
    ),
    errno.EIO: ("the disk reports errors", "check it, and choose another --out"),
}
# The same of anything else: a file that is read, a process or thread that is started.
_ADVICE_ON_READING = {
    errno.EACCES: ("permission is denied", "allow reading and writing there"),
    errno.EPERM: ("permission is denied", "allow reading and writing there"),
    errno.EAGAIN: ("no process or thread can be started", "raise the limit on them (ulimit -u)"),
    errno.ENOMEM: ("no memory is left", "free some, or lower the load"),
}
_BUGS = frozenset({errno.ENOENT, errno.ENOTDIR})  # we looked for a file where none is
_NO_THREAD = "can't start new thread"


def shortage(error: BaseException) -> str | None:
    """Return what the machine lacks or refuses, where, and what to do, for the user; None for any other error.

    The place is the file that the error names. A missing file is no shortage: that is a bug, or the user's
    mistake.
    """
    if isinstance(error, ImportError):
        # Python takes a folder that it cannot read for an empty one, and then says that the module is missing.
        return f"{error}: a file of the program cannot be read: allow it, raise ulimit -n, or install it again"
    if isinstance(error, MemoryError):
        number: int | None = errno.ENOMEM
    elif isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        number = errno.EAGAIN
    elif isinstance(error, OSError) and error.errno not in _BUGS:
        number = error.errno
    else:
        return None
    # An error does not say whether a file was read or written: the advice on reading fits both.
    advice = _ADVICE_ON_READING.get(number or 0) or ADVICE.get(number or 0)
    if advice is None:
        return None
    problem, remedy = advice
    file = getattr(error, "filename", None)
    place = f"{file}: " if isinstance(file, str) else ""
    return f"{place}{problem}: {remedy}"
