"""What Linux offers to shut a process in: namespaces, mounts, Landlock, capabilities, seccomp."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

_NEW_NAMESPACES: Final = (
    0x00020000  # mounts
    | 0x04000000  # the name of the machine
    | 0x08000000  # messages between processes
    | 0x10000000  # users
    | 0x20000000  # processes
    | 0x40000000  # network
)
_PDEATHSIG: Final = 1
_DUMPABLE: Final = 4
_SUBREAPER: Final = 36
_NO_NEW_PRIVILEGES: Final = 38
_MOUNT_PRIVATE: Final = 0x4000 | 0x40000  # of all below
_MOUNT_SETATTR: Final = 442
_ALL_BELOW: Final = 0x8000
_READ_ONLY: Final = 1
_LANDLOCK: Final = (444, 445, 446)  # the ruleset, a rule, restrict
_WRITING: Final = 0x1FF2  # to files, and making and removing them
_MOVING: Final = 1 << 13
_TRUNCATING: Final = 1 << 14
# From which version of Landlock on it knows these.
_VERSIONS: Final = {"moving": 2, "truncating": 3, "network": 4, "scopes": 6}
_NOBODY: Final = 65534
_CAPABILITIES: Final = 0x20080522
# A program that the kernel runs before each system call (linux/filter.h, linux/seccomp.h): its
# instructions, where it finds what is called, and what it answers.
_SECCOMP: Final = 22
_BY_PROGRAM: Final = 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_CALL, _MACHINE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_REFUSE: Final = 0x50000 | errno.EACCES
_ALLOW: Final = 0x7FFF0000
# By machine: its number in linux/audit.h, those of ``socket`` and ``socketpair``.
_MACHINES: Final = {"x86_64": (0xC000003E, 41, 53), "aarch64": (0xC00000B7, 198, 199)}
_IO_URING: Final = 425  # it would make sockets without such a call
_OTHER_NUMBERS: Final = 1 << 30  # the same calls by other numbers: x32
_KIND_OF_SOCKET: Final = 0xF  # the other bits of a type are flags


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _did(result: int) -> None:
    """Raise OSError for what the kernel refused."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _prctl(which: int, value: int) -> None:
    _did(_libc().prctl(which, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3))


def follow_parent() -> None:
    """Have this process killed when its parent ends."""
    _prctl(_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent has ended."""
    _prctl(_SUBREAPER, 1)


def forbid_tracing() -> None:
    """Let no process of the same user read or write this one's memory."""
    _prctl(_DUMPABLE, 0)


def enter_namespaces() -> bool:
    """Users, processes (the next child on), mounts and network of its own; False if refused."""
    user, group = os.getuid(), os.getgid()
    try:
        _did(_libc().unshare(_NEW_NAMESPACES))
        _write("setgroups", "deny")
        _write("uid_map", f"{_NOBODY} {user} 1")
        _write("gid_map", f"{_NOBODY} {group} 1")
    except OSError:
        return False
    return True


def _write(name: str, text: str) -> None:
    Path("/proc/self", name).write_text(text, encoding="ascii")


def own_mounts(scratch: str, size: int) -> bool:
    """Everything read-only but an empty folder in memory, and /proc of these processes alone.

    For the first process of new namespaces. False where the kernel refuses.
    """
    libc = _libc()
    attributes = struct.pack("=QQQQ", _READ_ONLY, 0, 0, 0)
    try:
        _did(libc.mount(None, b"/", None, _MOUNT_PRIVATE, None))
        with contextlib.suppress(OSError):  # where parts of the outer one are hidden
            _did(libc.mount(b"proc", b"/proc", b"proc", 0, None))
            Path("/proc/sys/user/max_user_namespaces").write_text("0", encoding="ascii")
        _did(libc.syscall(_MOUNT_SETATTR, -100, b"/", _ALL_BELOW, attributes, len(attributes)))
        _did(libc.mount(b"none", scratch.encode(), b"tmpfs", 0, f"size={size}".encode()))
    except OSError:
        return False
    return True


def drop_privileges() -> None:
    """Give up every capability, for good."""
    _prctl(_NO_NEW_PRIVILEGES, 1)
    header = struct.pack("=Ii", _CAPABILITIES, 0)
    _did(_libc().capset(header, struct.pack("=6I", *(0,) * 6)))


def write_only_below(folder: str) -> bool:
    """Refuse to write, make or remove files elsewhere, and TCP, by Landlock; False without it."""
    libc, (create, add, restrict) = _libc(), _LANDLOCK
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return False
    known = {name for name, since in _VERSIONS.items() if version >= since}
    files = _WRITING | (_MOVING if "moving" in known else 0)
    files |= _TRUNCATING if "truncating" in known else 0
    fields = [files, *([3] if "network" in known else []), *([3] if "scopes" in known else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    try:
        rules = libc.syscall(create, attributes, len(attributes), 0)
        _did(rules)
        for path, allowed in ((folder, files), ("/dev/null", 2), ("/dev/zero", 2)):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            _did(libc.syscall(add, rules, 1, struct.pack("=Qi", allowed, opened), 0))
            os.close(opened)
        _did(libc.syscall(restrict, rules, 0))
        os.close(rules)
    except OSError:
        return False
    return True


def no_local_sockets() -> bool:
    """Refuse sockets that reach servers of this machine through the file system; False if refused.

    Neither a network namespace nor a read-only mount keeps a process from these: it could ask a
    server that starts processes, such as Python's own, to start one outside. What remains are those
    of the network, and pairs of connected ones, which cannot be sent elsewhere.
    """
    machine = _MACHINES.get(os.uname().machine) if sys.maxsize >> 32 else None
    if machine is None:
        return False
    number, make, pair = machine
    network = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
    # Of each jump the instructions that are left out, if it is so and if not; the last two answer.
    program = [
        (_LOAD, 0, 0, _MACHINE),
        (_IF_EQUAL, 0, 14, number),
        (_LOAD, 0, 0, _CALL),
        (_IF_AT_LEAST, 12, 0, _OTHER_NUMBERS),
        (_IF_EQUAL, 11, 0, _IO_URING),
        (_IF_EQUAL, 6, 0, pair),
        (_IF_EQUAL, 0, 10, make),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IF_EQUAL, 8, 0, network[0]),
        (_IF_EQUAL, 7, 0, network[1]),
        (_IF_EQUAL, 6, 0, network[2]),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_AND, 0, 0, _KIND_OF_SOCKET),
        (_IF_EQUAL, 2, 0, socket.SOCK_STREAM),
        (_IF_EQUAL, 1, 0, socket.SOCK_SEQPACKET),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    held = ctypes.create_string_buffer(packed, len(packed))
    described = struct.pack("@HP", len(program), ctypes.addressof(held))
    try:
        _did(_libc().prctl(_SECCOMP, ctypes.c_ulong(_BY_PROGRAM), described, 0, 0))
    except OSError:
        return False
    return True
