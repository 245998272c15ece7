"""A filter of system calls for `bwrap --seccomp`: what a computation never needs and could misuse.

Everything else is allowed; files, network and processes are kept away by namespaces and limits. The filter is a
classic BPF program (linux/filter.h), which the kernel runs at each system call on the number and the arguments.
"""

from __future__ import annotations

import errno
import platform
import struct

# Numbers of x86_64 and aarch64 (asm/unistd_64.h and asm-generic/unistd.h).
FORBIDDEN = {
    # memory that no limit of a process counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    # new namespaces, in which a program would be root and could mount file systems of any size
    "unshare": (272, 97),
    "setns": (308, 268),
    # keys of the user who runs the host process
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # interfaces of the kernel with a history of holes
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "perf_event_open": (298, 241),
    "ptrace": (101, 117),
    "userfaultfd": (323, 282),
}
CLONE = (56, 220)
CLONE3 = (435, 435)
MACHINES = ("x86_64", "aarch64")
AUDIT_ARCH = (0xC000003E, 0xC00000B7)
CLONE_NEWUSER = 0x10000000
X32_BIT = 0x40000000
"""Marks calls of x86_64's second table, which has other numbers."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data, for little-endian machines
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def system_call_filter(machine: str = platform.machine()) -> bytes:
    """The filter for a machine, as bubblewrap reads it. Raises `KeyError` for a machine that is not in `MACHINES`."""
    if machine not in MACHINES:
        raise KeyError(machine)
    column = MACHINES.index(machine)
    numbers = [both[column] for both in FORBIDDEN.values()]
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, AUDIT_ARCH[column]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, FAIL | errno.ENOSYS),
        # clone3 keeps its flags where no filter can read them; without it, the C library falls back to clone.
        (EQUAL, 0, 1, CLONE3[column]),
        (RETURN, 0, 0, FAIL | errno.ENOSYS),
    ]
    for number in numbers:
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | errno.EPERM)]
    program += [
        (EQUAL, 0, 3, CLONE[column]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, CLONE_NEWUSER),
        (RETURN, 0, 0, FAIL | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
