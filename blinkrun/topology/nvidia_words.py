"""Words of nvidia-smi's matrices: names, connections, states, values, and how they grow together.

A row of ``nvidia-smi topo -m`` is a name followed by connections and affinities. Where a paste has
lost its tabs they run together (``GPU0XNODENODE0-310N/A``); they can be told apart again because
the vocabulary is small.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

SELF = "X"
UNSTATED = "N/A"
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "PSB")
P2P_STATES = ("OK", "U", "NS", "DR", "TNS", "CNS", "GNS")  # from best to worst
MAX_LANES = 36  # twice what any GPU has; NV40 is NV4 and a 0 behind it

_NIC_PIECES = (
    r"NIC\d+|mlx\d+_(?:[A-Za-z]+_)*\d+|bnxt_re\d+|hfi\d_\d+|irdma\d+|cxi\d+|qedr\d+|efa_\d+"
    r"|hns_\d+|erdma_\d+|mana_\d+|ionic_\d+|usnic_\d+|mthca\d+|qib\d+|i40iw\d+|rxe\d+|siw\d+"
)
_NIC = re.compile(
    rf"(?:{_NIC_PIECES}|mlx\d+_\w+|bnxt_re\w+|irdma\w+|efa\w*\d|rdma\w+|roce\w+|ib\w*\d+|en[opsx]\w+"
    r"|eth\d+|rxe\w+|siw\w+|xscale_\d+|hfi\w+|opa\d+|NVME\d+)"
)
_GPU = re.compile(r"GPU\d{1,5}")
_NVLINK = re.compile(r"NV(\d{1,2})")
_FUSED = re.compile(r"NV\d[\d,-]+")  # NV120-63: NV12 and 0-63, or NV1 and 20-63
_COUNT = re.compile(r"NV(\d+)")
_VALUE = re.compile(r"\d[\d,-]*|N/A")
# Longer words before those that begin like them; N/A before NV, ID last.
_PIECE = re.compile(
    r"GPU\d+|N/A|NV\d+(?:[-,][\d,-]*)?|NODE|SYS|SOC|PHB|PXB|PIX|PSB|CNS|GNS|TNS|OK|NS|DR|X"
    rf"|(?:CPU|NUMA)[_-]Affinity|GPU[_-]NUMA[_-]ID|CPU|NUMA|Affinity|GPU|ID|{_NIC_PIECES}|\d[\d,-]*"
)
_HEADINGS = frozenset({"cpu", "numa", "affinity", "gpu", "id"})
_MARKS = "#>:;,+()[]{}=/%!~&$^"
_SEPARATORS = re.compile(r",(?!\d)|(?<!\d),|;|(?<=[^A-Za-z0-9])(?=GPU\d)")  # host:GPU0 too
_MAX_WORD = 4096


_cached = lru_cache(maxsize=4096)  # a paste has few different words and asks of each often


@_cached
def is_gpu(word: str) -> bool:
    """Whether `word` names a GPU: ``GPU0``."""
    return _GPU.fullmatch(word) is not None


@_cached
def is_nic(word: str) -> bool:
    """Whether `word` is a name that drivers give to network devices (``mlx5_0``, ``NIC0``)."""
    return _NIC.fullmatch(word) is not None


def is_device(word: str) -> bool:
    """Whether `word` names a GPU or a NIC."""
    return is_gpu(word) or is_nic(word)


@_cached
def is_heading(word: str) -> bool:
    """Whether `word` belongs to the header beside the devices: ``CPU``, ``Affinity``, ``NUMA``."""
    return re.split(r"[_-]", word.lower(), maxsplit=1)[0] in _HEADINGS


def is_state(word: str) -> bool:
    """Whether `word` is a state of ``topo -p2p``: ``OK``, ``CNS``, …."""
    return word in P2P_STATES


@_cached
def is_link(word: str) -> bool:
    """Whether `word` tells how two devices are joined: ``X``, ``NV4``, ``SYS``, ``OK``, ….

    >>> [is_link(word) for word in ("X", "NV12", "NODE", "GNS", "N/A", "0-31")]
    [True, True, True, True, False, False]
    """
    upper = word.upper()
    return upper == SELF or upper in LEVELS or upper in P2P_STATES or _is_nvlink(upper)


def is_cell(word: str) -> bool:
    """Whether `word` may stand in a cell; ``N/A`` and ``-`` are cells that state nothing."""
    return word in (UNSTATED, "-") or is_link(word)


@_cached
def is_value(word: str) -> bool:
    """Whether `word` may stand in an affinity column: ``0-31,64-95``, ``3``, ``N/A``."""
    return _VALUE.fullmatch(word) is not None


@_cached
def is_fused(word: str) -> bool:
    """Whether `word` is an NVLink count that ran into the affinity behind it: ``NV120-63``."""
    return _FUSED.fullmatch(word) is not None and not is_link(word) and bool(unfuse(word))


def _is_nvlink(word: str) -> bool:
    match = _NVLINK.fullmatch(word)
    return match is not None and 0 < int(match[1]) <= MAX_LANES


def lanes(cell: str) -> int:
    """Return the NVLinks that a cell states, 0 where it states another connection.

    >>> lanes("NV12"), lanes("SYS")
    (12, 0)
    """
    match = _NVLINK.fullmatch(cell)
    return int(match[1]) if match else 0


def unfuse(word: str) -> tuple[tuple[str, str], ...]:
    """Return the ways to part an NVLink count from the affinity that it ran into.

    >>> unfuse("NV120-63")
    (('NV1', '20-63'), ('NV12', '0-63'))
    """
    count = _COUNT.match(word)
    if count is None:
        return ()
    digits, rest = count[1], word[count.end() :]
    ways = [
        (f"NV{digits[:k]}", (digits[k:] + rest).lstrip(",")) for k in range(1, len(digits[:2]) + 1)
    ]
    return tuple((cell, value) for cell, value in ways if is_link(cell) and is_value(value))


def spans(names: Sequence[str]) -> str:
    """Return names in few words: neighbours by number as a span.

    >>> spans(["GPU0", "GPU1", "GPU5", "GPU6", "GPU7"])
    'GPU0, GPU1, GPU5..GPU7'
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def in_rows(names: Sequence[str]) -> str:
    """Return ``row GPU1`` or ``rows GPU1..GPU3``.

    >>> in_rows(["GPU0"]), in_rows(["GPU0", "GPU1"])
    ('row GPU0', 'rows GPU0, GPU1')
    """
    return f"row{'s' if len(names) > 1 else ''} {spans(names)}"


def _follows(name: str, after: str) -> bool:
    number = re.search(r"\d{1,6}$", name)
    return number is not None and after == f"{name[: number.start()]}{int(number[0]) + 1}"


def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a cleaned line, without marks, apart where they grew together.

    >>> split_words("# GPU0GPU1mlx5_0CPU Affinity")
    ('GPU0', 'GPU1', 'mlx5_0', 'CPU', 'Affinity')
    >>> split_words("[rank0]: GPU1 NODENODE X 0-31,64-95 N/A")
    ('rank0', 'GPU1', 'NODE', 'NODE', 'X', '0-31,64-95', 'N/A')
    """
    return tuple(piece for word in text.split() for piece in _pieces(word))


@_cached
def _pieces(raw: str) -> tuple[str, ...]:
    """Return the words in what stands between two blanks."""
    if raw == "-":
        return ("-",)
    word = raw.strip(_MARKS)
    if len(word) > _MAX_WORD:
        return (word,)
    parts = (word,) if is_value(word) else _SEPARATORS.split(word)
    words = (
        part.strip(_MARKS).lstrip("-") for part in parts
    )  # -GPU0 in a diff, --- below a header
    return tuple(piece for word in words if word for piece in _tiles(word))


def _tiles(word: str) -> tuple[str, ...]:
    """Return the known words that `word` is made of, `word` itself if it is not.

    What follows the name of a GPU is parted from it in any case: a NIC may be called anything.
    """
    at = 0
    tiles: list[str] = []
    while at < len(word):
        match = _PIECE.match(word, at)
        if match is None:
            return (*tiles, word[at:]) if tiles and is_gpu(tiles[0]) else (word,)
        tiles.append(match[0])
        at = match.end()
    return tuple(tiles)
