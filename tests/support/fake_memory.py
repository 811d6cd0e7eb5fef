"""The memory of fake devices: mappings of this process, and who may address them.

A device's memory is a memfd, so that other processes can open it. What is given back keeps its
addresses and loses its pages: a late access ends the process, and a late address is recognised.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import threading
from dataclasses import dataclass

PAGE = mmap.PAGESIZE
_POISON_MOST = 8 << 20  # bytes at the start of new memory that are not zero, as on a device
_FIXED, _NORESERVE, _FAILED, _MAY_MOVE = 0x10, 0x4000, ctypes.c_void_p(-1).value, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True, slots=True)
class Region:
    """Addresses [start, stop); `chip` is the device whose memory it is, "" is the host's."""

    start: int
    stop: int
    chip: str
    fd: int = -1
    opened: bool = False  # another process's
    freed: bool = False


class Regions:
    """What this process has mapped for fake devices, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, Region] = {}
        self._lock = threading.Lock()

    def add(self, region: Region) -> None:
        with self._lock:
            if region.start not in self._by_start:
                bisect.insort(self._starts, region.start)
            self._by_start[region.start] = region

    def drop(self, start: int) -> None:
        with self._lock:
            del self._by_start[start]
            self._starts.remove(start)

    def at(self, start: int) -> Region | None:
        """Return the live region that begins at `start`."""
        region = self._by_start.get(start)
        return None if region is None or region.freed else region

    def holding(self, address: int) -> Region | None:
        """Return the region that `address` lies in, whether given back or not."""
        with self._lock:
            place = bisect.bisect_right(self._starts, address)
            region = self._by_start[self._starts[place - 1]] if place else None
        return region if region is not None and address < region.stop else None


REGIONS = Regions()


def whole_pages(num_bytes: int) -> int:
    return max(-(-num_bytes // PAGE), 1) * PAGE


def map_fd(fd: int, num_bytes: int) -> int:
    """Return the address of a new shared mapping of `fd`."""
    flags = mmap.MAP_SHARED | _NORESERVE
    address = _libc.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return int(address)


def new_memory(chip: str, num_bytes: int) -> int:
    """Map new memory of `chip`; it begins with what was never written."""
    size = whole_pages(num_bytes)
    fd = os.memfd_create("fake device", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    address = map_fd(fd, size)
    ctypes.memset(address, 0xA5, min(size, _POISON_MOST))
    REGIONS.add(Region(address, address + size, chip, fd))
    return address


def host_memory(num_bytes: int) -> tuple[int, int]:
    """Map new host memory twice: where the host sees it, and where devices do."""
    size = whole_pages(num_bytes)
    fd = os.memfd_create("fake pinned", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    here, there = map_fd(fd, size), map_fd(fd, size)
    os.close(fd)
    REGIONS.add(Region(there, there + size, ""))
    return here, there


def second_mapping(pointer: int, num_bytes: int) -> int:
    """Map host memory a second time, for devices; memory that is not shared stays where it is."""
    before = pointer % PAGE
    size = whole_pages(num_bytes + before)
    address = _libc.mremap(pointer - before, 0, size, _MAY_MOVE)
    address = pointer - before if address == _FAILED else int(address)
    REGIONS.add(Region(address, address + size, ""))
    return address + before


def give_back(region: Region) -> None:
    """Release the pages of `region`; nothing is ever mapped there again."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED | _NORESERVE
    REGIONS.add(Region(region.start, region.stop, region.chip, freed=True))
    _libc.mmap(region.start, region.stop - region.start, 0, flags, -1, 0)
    if region.fd >= 0:
        os.close(region.fd)


def release(address: int, num_bytes: int) -> None:
    """Unmap what was mapped for the host alone."""
    _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes))
