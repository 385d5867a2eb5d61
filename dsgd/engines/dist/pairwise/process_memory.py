"""Read the memory of another process of this host, by Linux's process_vm_readv."""

from __future__ import annotations

import ctypes
import os
import secrets

SECRET_BYTES = 32
PR_SET_PTRACER, ANYBODY = 0x59616D61, ctypes.c_ulong(-1)

_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def permit_reading() -> None:
    """Permit the other processes of this user to read this process's memory, if Yama restricts that to parents."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)  # fails without Yama, which then restricts nothing


class Secret:
    """A random text in this process's memory: a process that knows it can read the memory."""

    def __init__(self) -> None:
        self.text = secrets.token_hex(SECRET_BYTES // 2)
        self._memory = ctypes.create_string_buffer(self.text.encode())
        self.address = ctypes.addressof(self._memory)


class ProcessMemory:
    """The memory of another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def shows(self, secret: str, address: int) -> bool:
        """Return whether this is the process that has put the secret there, and may be read."""
        content = bytearray(SECRET_BYTES)
        try:
            self.read_into(memoryview(content), address)
        except OSError:
            return False
        return content == secret.encode()

    def read_into(self, view: memoryview, address: int) -> None:
        """Fill a view from an address. Raises OSError: the process has gone, or may not be read."""
        read = getattr(_libc, "process_vm_readv", None)
        if read is None:
            raise OSError("process_vm_readv is missing")
        read.restype = ctypes.c_ssize_t
        done = 0
        while done < len(view):
            local = _Range(ctypes.addressof(ctypes.c_char.from_buffer(view, done)), len(view) - done)
            other = _Range(address + done, len(view) - done)
            count = read(self.pid, ctypes.byref(local), 1, ctypes.byref(other), 1, 0)
            if count <= 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            done += count
