"""What Linux offers to shut a process in: namespaces, mounts, Landlock, capabilities, seccomp."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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
_BIND: Final = 0x1000
_MOUNT_PRIVATE: Final = 0x4000 | 0x40000  # of all below
_MOUNT_SETATTR: Final = 442
_ALL_BELOW: Final = 0x8000
_READ_ONLY: Final = 1
_LANDLOCK: Final = (444, 445, 446)  # the ruleset, a rule, restrict
_WRITING: Final = 0x1FF2  # to files, and making and removing them
_MOVING: Final = 1 << 13
_TRUNCATING: Final = 1 << 14
_CONTROLLING: Final = 1 << 15  # of devices
_READING: Final = 1 << 2
# Landlock versions that introduced these rights.
_VERSIONS: Final = {"moving": 2, "truncating": 3, "network": 4, "controlling": 5, "scopes": 6}
_NOBODY: Final = 65534
_CAPABILITIES: Final = 0x20080522
# A seccomp program, run by the kernel before each system call (linux/filter.h, linux/seccomp.h):
# instructions, the places of the call's number and arguments, and answers.
_SECCOMP: Final = 22
_BY_PROGRAM: Final = 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_CALL, _MACHINE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_REFUSE: Final = 0x50000 | errno.EACCES
_PRETEND: Final = 0x50000  # nothing is done, and the caller is told that it was
_ALLOW: Final = 0x7FFF0000
# Audit architecture numbers (linux/audit.h).
_MACHINES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# System call numbers by architecture in this order; None without the call.
_Numbers = dict[str, tuple[int, int | None]]
# Calls for memory that is unmapped, uncounted or outlives processes, for sockets by a detour, for
# reading other processes, or for keeping notes between processes.
_REFUSED: Final[_Numbers] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "vmsplice": (278, 75),
    "io_uring_setup": (425, 425),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
# Calls that leave the process group, which is ended as a whole.
_LEAVING: Final[_Numbers] = {"setpgid": (109, 154), "setsid": (112, 157)}
# Calls that change a file's metadata.
_MARKING: Final[_Numbers] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
_SOCKET, _PAIR, _CONTROL, _LIMIT = (41, 198), (53, 199), (16, 29), (302, 261)
_OTHER_NUMBERS: Final = 1 << 30  # the same calls by other numbers: x32
_KIND_OF_SOCKET: Final = 0xF  # the other bits of a type are flags
# Terminal requests, and among them the harmless queries and requests valid for all files.
_OF_TERMINALS: Final = (0x5400, 0x54FF)
_ASKING: Final = (0x5401, 0x540F, 0x5411, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x5452)
_OF_KIND_T: Final = (0x402C542B, 0x402C542C, 0x402C542D)  # TCSETS2 and its like
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _did(result: int) -> None:
    """Raise OSError if a call of the kernel failed (negative result)."""
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
    """Forbid processes of the same user to read or write this process's memory."""
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
    """Everything read-only but an empty folder in memory; devices and processes of its own alone.

    For the first process of new namespaces. False where the kernel refuses.
    """
    libc = _libc()
    attributes = struct.pack("=QQQQ", _READ_ONLY, 0, 0, 0)
    try:
        _did(libc.mount(None, b"/", None, _MOUNT_PRIVATE, None))
        with contextlib.suppress(OSError):  # where parts of the outer one are hidden
            _did(libc.mount(b"proc", b"/proc", b"proc", 0, None))
        with contextlib.suppress(OSError):
            Path("/proc/sys/user/max_user_namespaces").write_text("0", encoding="ascii")
        _own_devices()
        _did(libc.syscall(_MOUNT_SETATTR, -100, b"/", _ALL_BELOW, attributes, len(attributes)))
        options = f"size={size},nr_inodes={size >> 12}".encode()
        _did(libc.mount(b"none", scratch.encode(), b"tmpfs", 0, options))
    except OSError:
        return False
    return True


def _own_devices() -> None:
    """Replace /dev by the few devices everybody may read: no terminals."""
    libc = _libc()
    opened = {name: os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in _DEVICES}
    _did(libc.mount(b"none", b"/dev", b"tmpfs", 0, b"size=64k,mode=755"))
    for name, device in opened.items():
        Path("/dev", name).touch()
        source, place = f"/proc/self/fd/{device}".encode(), f"/dev/{name}".encode()
        _did(libc.mount(source, place, None, _BIND, None))
        os.close(device)
    Path("/dev/shm").mkdir()  # noqa: S108 (as everywhere)
    Path("/dev/fd").symlink_to("/proc/self/fd")


def drop_privileges() -> None:
    """Give up every capability, for good."""
    _prctl(_NO_NEW_PRIVILEGES, 1)
    header = struct.pack("=Ii", _CAPABILITIES, 0)
    _did(_libc().capset(header, struct.pack("=6I", *(0,) * 6)))


@dataclass(frozen=True, kw_only=True)
class Doors:
    """The restrictions of Landlock in force: writing to files, and reading or setting devices."""

    files: bool = False
    devices: bool = False


def write_only_below(folder: str, *, sees_devices: bool) -> Doors:
    """Restrict writing, creating and removing files to a folder, and forbid TCP, by Landlock.

    If the process ``sees_devices``, opening devices for reading is forbidden, too.
    """
    libc, (create, add, restrict) = _libc(), _LANDLOCK
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return Doors()
    known = {name for name, since in _VERSIONS.items() if version >= since}
    more = {"moving": _MOVING, "truncating": _TRUNCATING, "controlling": _CONTROLLING}
    files = _WRITING | sum(bit for name, bit in more.items() if name in known)
    files |= _READING if sees_devices else 0
    fields = [files, *([3] if "network" in known else []), *([3] if "scopes" in known else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    below = [(folder, files), ("/dev/null", 2), ("/dev/zero", 2)]
    if sees_devices:
        below += [(str(each), _READING) for each in Path("/").iterdir() if each.name != "dev"]
        below += [(f"/dev/{name}", _READING) for name in _DEVICES]
    try:
        rules = libc.syscall(create, attributes, len(attributes), 0)
        _did(rules)
        for path, allowed in below:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:  # a link that leads nowhere
                continue
            _did(libc.syscall(add, rules, 1, struct.pack("=Qi", allowed, opened), 0))
            os.close(opened)
        _did(libc.syscall(restrict, rules, 0))
        os.close(rules)
    except OSError:
        return Doors()
    return Doors(files="truncating" in known, devices=sees_devices)


def filter_calls(*, inside: bool, mounted: bool) -> bool:
    """Refuse system calls that evade the limits or reach outside; False if the kernel refuses.

    Sockets in the file system reach this machine's servers despite a network namespace or a
    read-only mount, and a server that starts processes, like Python's fork server, would start one
    outside. Allowed are connected socket pairs, which cannot be sent elsewhere, and network sockets
    if the process is ``inside`` its own network; otherwise the process must stay in its process
    group. Unless files are ``mounted`` read-only, calls changing a file's metadata do nothing.
    """
    machine = os.uname().machine
    if machine not in _MACHINES or not sys.maxsize >> 32:
        return False
    which = list(_MACHINES).index(machine)
    answers = dict.fromkeys(_REFUSED.items(), _REFUSE)
    answers |= {} if inside else dict.fromkeys(_LEAVING.items(), _PRETEND)
    answers |= {} if mounted else dict.fromkeys(_MARKING.items(), _PRETEND)
    network = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK) if inside else ()
    program = [
        (_LOAD, 0, 0, _MACHINE),
        *_unless(_IF_EQUAL, [_MACHINES[machine]], _REFUSE),
        (_LOAD, 0, 0, _CALL),
        (_IF_AT_LEAST, 0, 1, _OTHER_NUMBERS),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for (_, numbers), answer in answers.items():
        number = numbers[which]
        if number is not None:
            program += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)]
    arguments = (
        (_SOCKET, [(_LOAD, 0, 0, _FIRST_ARGUMENT), *_unless(_IF_EQUAL, network, _REFUSE)]),
        (
            _PAIR,
            [
                (_LOAD, 0, 0, _SECOND_ARGUMENT),
                (_AND, 0, 0, _KIND_OF_SOCKET),
                *_unless(_IF_EQUAL, (socket.SOCK_STREAM, socket.SOCK_SEQPACKET), _REFUSE),
            ],
        ),
        (_CONTROL, _refuse_terminals()),
        # Only its own limits: setting one of the judge's to zero would end the judge.
        (_LIMIT, [(_LOAD, 0, 0, _FIRST_ARGUMENT), *_unless(_IF_EQUAL, [0], _REFUSE)]),
    )
    for numbers, looks in arguments:
        looks.append((_RETURN, 0, 0, _ALLOW))
        program += [(_IF_EQUAL, 0, len(looks), numbers[which]), *looks]
    program.append((_RETURN, 0, 0, _ALLOW))
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    held = ctypes.create_string_buffer(packed, len(packed))
    described = struct.pack("@HP", len(program), ctypes.addressof(held))
    try:
        _did(_libc().prctl(_SECCOMP, ctypes.c_ulong(_BY_PROGRAM), described, 0, 0))
    except OSError:
        return False
    return True


# An instruction: code, instructions skipped if true and if false, and operand.
_Instruction = tuple[int, int, int, int]


def _unless(comparison: int, values: Sequence[int], answer: int) -> list[_Instruction]:
    """Return ``answer`` unless the loaded number compares true with one of the values."""
    count = len(values)
    looks = [(comparison, count - number, 0, value) for number, value in enumerate(values)]
    return [*looks, (_RETURN, 0, 0, answer)]


def _refuse_terminals() -> list[_Instruction]:
    """Refuse requests that configure a terminal or inject typed input."""
    first, last = _OF_TERMINALS
    asking = _unless(_IF_EQUAL, _ASKING, _REFUSE)
    looks = [(_LOAD, 0, 0, _SECOND_ARGUMENT)]
    for request in _OF_KIND_T:
        looks += [(_IF_EQUAL, 0, 1, request), (_RETURN, 0, 0, _REFUSE)]
    return [
        *looks,
        (_IF_AT_LEAST, 0, 1 + len(asking), first),
        (_IF_AT_LEAST, len(asking), 0, last + 1),
        *asking,
    ]
