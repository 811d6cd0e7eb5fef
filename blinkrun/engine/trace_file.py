"""A JSON array on disk that grows and is whole at every moment, even if its writer is killed.

The array is followed by blanks, and its closing bracket stands behind them. New elements are
written over the blanks, one page at a time and none across the edge of a page: the kernel carries
out a write within a page wholly or not at all, whatever signal comes. When the blanks are used up
the file is copied into a larger one, which takes its place in one step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_PAGE_BYTES = 4096
_BLANKS_BYTES = 64 << 10  # at least (need 2 pages); as much as there is text: few copies
_COPY_BYTES = 1 << 20
_END = b"\n]\n"


class TraceFile:
    """Appends elements to a JSON array in a file.

    Parameters
    ----------
    path : str
        The file; what it held is gone. A device or a pipe is written straight on.
    elements : iterable of str
        The first elements, each as JSON text; at least one.

    Raises
    ------
    OSError
        If the file cannot be written; `append` and `close` raise it as well, and leave the file as
        it was.
    """

    def __init__(self, path: str, elements: Iterable[str]) -> None:
        self._path = os.path.realpath(path)
        self._is_stream = os.path.exists(self._path) and not os.path.isfile(self._path)
        self._file = -1
        self._end = 0  # of the text
        self._limit = 0  # of the blanks behind it
        text = b"[\n" + ",\n".join(elements).encode()
        if self._is_stream:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            _write(self._file, text)
        else:
            self._replace(text, _BLANKS_BYTES)

    def append(self, elements: Iterable[str]) -> None:
        """Add elements, each as JSON text."""
        texts = [b",\n" + element.encode() for element in elements]
        if self._is_stream:
            _write(self._file, b"".join(texts))
            return
        page: list[bytes] = []
        used = self._end % _PAGE_BYTES
        for text in texts:
            if used + len(text) > _PAGE_BYTES:
                self._put(b"".join(page))
                page, used = [], 0
                if len(text) > _PAGE_BYTES:
                    self._replace(text, max(self._end + len(text), _BLANKS_BYTES))
                    used = self._end % _PAGE_BYTES
                    continue
                self._skip_page()
            page.append(text)
            used += len(text)
        self._put(b"".join(page))

    def close(self) -> None:
        """Take the blanks away and close the file."""
        try:
            if self._is_stream:
                _write(self._file, _END)
            else:
                self._replace(b"", 0)
        finally:
            os.close(self._file)
            self._file = -1

    def _skip_page(self) -> None:
        """Leave the rest of a page blank."""
        rest = -self._end % _PAGE_BYTES
        if self._end + rest > self._limit:
            self._grow()
        self._end += rest

    def _put(self, text: bytes) -> None:
        """Write text that lies within a page."""
        if not text:
            return
        if self._end + len(text) > self._limit:
            self._grow()
        try:
            _write(self._file, text, self._end)
        except OSError:
            os.pwrite(self._file, b" " * len(text), self._end)
            raise
        self._end += len(text)

    def _grow(self) -> None:
        self._replace(b"", max(self._end, _BLANKS_BYTES))

    def _replace(self, text: bytes, num_blanks: int) -> None:
        """Continue in a copy with `text` added and `num_blanks` blanks behind."""
        draft = f"{self._path}.{os.getpid()}.part"
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            for start in range(0, self._end, _COPY_BYTES):
                part = os.pread(self._file, min(_COPY_BYTES, self._end - start), start)
                _write(file, part, start)
            _write(file, text + b" " * num_blanks + _END, self._end)
            os.replace(draft, self._path)
        except OSError:
            os.close(file)
            os.unlink(draft)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._end += len(text)
        self._limit = self._end + num_blanks


def _write(file: int, text: bytes, offset: int = -1) -> None:
    """Write all of `text`, at `offset` or where a stream is."""
    written = os.write(file, text) if offset < 0 else os.pwrite(file, text, offset)
    if written < len(text):
        raise OSError(0, f"only {written} of {len(text)} bytes were written")
