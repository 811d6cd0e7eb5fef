"""What nvidia-smi says of a machine: ``topo -m``, ``topo -p2p``, ``nvlink --status``, ``-L``.

In any mix, in any order, several machines in one text, and with whatever a paste has around them:
a prompt, a log, an environment report. A machine is a matrix of ``topo -m`` and what stands near
it and speaks of the same GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from blinkrun.errors import ReportError
from blinkrun.topology import nvidia_words as words
from blinkrun.topology.machine import Gpu, LinkStatus, Machine, PciPath
from blinkrun.topology.nvidia_matrix import Matrix
from blinkrun.topology.nvidia_reports import Report, find_reports, is_message
from blinkrun.topology.nvidia_status import UNKNOWN, find_listings
from blinkrun.topology.nvidia_tables import find_tables
from blinkrun.topology.paste import clean_lines
from blinkrun.topology.paste_tags import untagged

_GPU = re.compile(r"\bGPU ?\d")
_PEER_CAPABILITIES = frozenset("rwp")  # n and a tell of NVLink and of atomics alone


def looks_like_nvidia_smi(text: str) -> bool:
    r"""Whether a text has something in it that nvidia-smi prints about how GPUs are joined.

    >>> looks_like_nvidia_smi("\tGPU0\tGPU1\nGPU0\t X \tNV2"), looks_like_nvidia_smi("GPU0 0 XGMI")
    (True, False)
    """
    try:
        lines = untagged(clean_lines(text))
    except ReportError:  # too long: reading it says so, with the file's name
        return _GPU.search(text) is not None
    tables = find_tables(lines)
    is_any = any(table.headings or (table.rows and not is_message(table)) for table in tables)
    return is_any or bool(find_listings(lines))


def read_nvidia_smi(text: str, source: str = "-", *, partial: bool = False) -> Machine:
    r"""Return the first machine of a text.

    Parameters
    ----------
    text : str
        What nvidia-smi printed, with anything around it.
    source : str, default "-"
        The file's name, for messages and as the machine's name.
    partial : bool, default False
        Whether to take what is whole if not all of it is.

    Raises
    ------
    ReportError
        If there is nothing of nvidia-smi, or something of it is broken.

    Examples
    --------
    >>> text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-7\nGPU1\tNV2\t X \t0-7"
    >>> read_nvidia_smi(text).nvlink
    (Wire(low=0, high=1, lanes=2),)
    """
    return read_nvidia_reports(text, source, partial=partial)[0]


def read_nvidia_reports(
    text: str, source: str = "-", *, partial: bool = False
) -> tuple[Machine, ...]:
    """Return all machines of a text in order, at least one.

    Parameters
    ----------
    text, source, partial
        As for `read_nvidia_smi`.

    Raises
    ------
    ReportError
        If there is nothing of nvidia-smi, or one of the reports is broken.
    """
    reports = find_reports(untagged(clean_lines(text, source)), source, partial=partial)
    if not reports:
        problem = "nothing of nvidia-smi here, expected a header GPU0 GPU1 … and a row for each GPU"
        raise ReportError(source, 0, problem)
    return tuple(_machine(report, source) for report in reports)


def _machine(report: Report, source: str) -> Machine:
    """Return the machine that a report states."""
    status, clashes = _status(report)
    states, told = _states(report)
    matrix = report.matrix
    machine = Machine(
        name=source,
        source=_kinds(report),
        gpus=tuple(_gpus(report, status)),
        nvlink=None,
        pcie=None,
        p2p=states,
        status=tuple(status.values()),
        missing=tuple(dict.fromkeys(name for one, _ in report.states for name in one.missing)),
        notes=(*(note for one, _ in report.states for note in one.notes), *told, *clashes),
    )
    if matrix is None:
        return machine.with_notes(*_doubts(report), *_status_notes(machine))
    return replace(
        machine,
        nics=tuple(replace(nic, device=report.devices.get(nic.name, "")) for nic in matrix.nics),
        nvlink=matrix.nvlink,
        pcie=_pcie(report, matrix),
        gpu_nic=matrix.gpu_nic,
        missing=matrix.missing,
        notes=(*matrix.notes, *machine.notes, *_status_notes(machine)),
    )


def _pcie(report: Report, matrix: Matrix) -> tuple[PciPath, ...]:
    """Return the PCIe levels, those behind NVLinks too where ``topo -mp`` states them."""
    stated = {(path.low, path.high) for path in matrix.pcie}
    more = report.pci_only.pcie if report.pci_only else ()
    return (*matrix.pcie, *(path for path in more if (path.low, path.high) not in stated))


def _kinds(report: Report) -> str:
    kinds = []
    if report.matrix:
        kinds.append("nvidia-smi topo -m")
    if report.states:
        kinds.append("nvidia-smi topo -p2p")
    if any(listing.status for listing in report.listings):
        kinds.append("nvidia-smi nvlink -s")
    return " + ".join(kinds or ["nvidia-smi -L"])


def _status(report: Report) -> tuple[dict[str, LinkStatus], list[str]]:
    """Return each GPU's link status, and notes on what does not go together."""
    status: dict[str, LinkStatus] = {}
    for listing in report.listings:
        for one in listing.status:
            status.setdefault(one.gpu, one)
    listed = [name for listing in report.listings for name in listing.names]
    strange = [name for name in dict.fromkeys(listed) if name not in report.names]
    notes = [f"{words.spans(strange)}: listed, but not in the matrix"] if strange else []
    return status, notes


def _gpus(report: Report, status: dict[str, LinkStatus]) -> Iterator[Gpu]:
    """Yield the GPUs with what the lists tell of them."""
    of_matrix = {gpu.name: gpu for gpu in report.base.gpus} if report.base else {}
    models: dict[str, str] = {}
    uuids: dict[str, str] = {}
    for listing in report.listings:
        models.update({name: model for name, model in listing.models.items() if model})
        uuids.update(listing.uuids)
    for name in report.names:
        said = status.get(name)
        is_whole = said is not None and not said.is_cut
        yield replace(
            of_matrix.get(name, Gpu(name)),
            model=models.get(name, ""),
            uuid=uuids.get(name, ""),
            lanes=said.active if said and is_whole else None,
            lane_gb_per_s=said.gb_per_s if said and is_whole else None,
        )


def _states(report: Report) -> tuple[tuple[tuple[int, int, str], ...], list[str]]:
    """Return the worst state of each pair, of the matrices that tell of peer access."""
    others = {asked for _, asked in report.states if asked and not set(asked) & _PEER_CAPABILITIES}
    peers = [matrix for matrix, asked in report.states if asked not in others]
    notes = []
    if others:
        what = "left out" if peers else "the only ones here"
        named = "".join(sorted(others))
        notes.append(f"topo -p2p {named}: not about peer access in general; {what}")
    worst: dict[tuple[int, int], str] = {}
    for matrix in peers or [matrix for matrix, _ in report.states]:
        at = [report.names.index(gpu.name) for gpu in matrix.gpus]
        for (low, high), state in matrix.states.items():
            pair = (min(at[low], at[high]), max(at[low], at[high]))
            worst[pair] = max(worst.get(pair, state), state, key=words.P2P_STATES.index)
    return tuple((low, high, state) for (low, high), state in sorted(worst.items())), notes


def _doubts(report: Report) -> Iterator[str]:
    """Say what a report without a matrix does not tell."""
    if report.states:
        yield "topo -p2p does not tell how GPUs are joined; add nvidia-smi topo -m"
    elif any(listing.status for listing in report.listings):
        yield "nvlink -s does not name peers; pair edges are unknown"
    else:
        yield "a list of GPUs does not tell how they are joined; add nvidia-smi topo -m"


def _status_notes(machine: Machine) -> Iterator[str]:
    for status in machine.status:
        if status.gpu == UNKNOWN:
            yield "links are listed without the GPU that they belong to"
        if status.is_cut:
            yield f"{status.gpu}: the list of its links is cut after {status.active}"
        elif status.inactive:
            total = status.active + status.inactive
            yield f"{status.gpu}: {status.inactive} of {total} NVLinks inactive"
