"""Reads a machine from whatever people have, recognised by its content."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from blinkrun.errors import ReportError
from blinkrun.topology.amd_smi import read_amd_smi
from blinkrun.topology.amd_tables import is_amd_smi_text, is_amd_text, report_texts
from blinkrun.topology.deserialize import read_json
from blinkrun.topology.machine import Machine
from blinkrun.topology.nccl_xml import read_nccl_xml
from blinkrun.topology.nvidia_smi import looks_like_nvidia_smi, read_nvidia_reports
from blinkrun.topology.paste import MAX_BYTES
from blinkrun.topology.rocm_smi import read_rocm_smi
from blinkrun.topology.xml_text import documents

KNOWN = (
    "nvidia-smi topo -m, topo -p2p or nvlink -s",
    "an NCCL or RCCL topology file (XML)",
    "rocm-smi --showtopo",
    "amd-smi topology",
    "what blinkrun topo --json prints",
)

_JSON = re.compile(r"^[ \t]*[\[{]\s*[\"\[{}\]]", re.MULTILINE)
_OWN_KEYS = re.compile(r'"(?:gpu_names|pci_devices|format)"\s*:')
_AMD_KEYS = re.compile(r'"(?:bdf|gpu_data)"\s*:')
_ROCM_KEYS = re.compile(r'"(?:system|card\d+)"\s*:|\(Topology\)', re.IGNORECASE)

_Reader = Callable[..., Machine]


def read_machine(
    text: str, source: str = "-", *, partial: bool = False, report: int | None = None
) -> Machine:
    r"""Return the machine that a text describes, in any format of `KNOWN`.

    Parameters
    ----------
    text : str
        As people pasted it.
    source : str, default "-"
        The file's name, for messages.
    partial : bool, default False
        Take what is whole where the text is broken, and note what is left out.
    report : int, optional
        Which of several reports in the text, from 1; one that repeats another does not count.
        The first if not given, and a note then says how many others there are.

    Raises
    ------
    ReportError
        If the text is of no known format or is broken, or has no such report.

    Examples
    --------
    >>> read_machine("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n").nvlink
    (Wire(low=0, high=1, lanes=2),)
    """
    if len(text) > MAX_BYTES:
        problem = f"{len(text)} characters are no report of a machine, expected at most {MAX_BYTES}"
        raise ReportError(source, 0, problem)
    try:
        return _read(text, source, partial, report)
    except ReportError as err:
        if partial or not err.partial:
            raise
        broken = err
    try:
        _read(text, source, True, report)
    except ReportError:  # --partial would not help, so the message must not offer it
        raise ReportError(source, broken.line, broken.problem) from None
    raise broken


def _read(text: str, source: str, partial: bool, report: int | None) -> Machine:
    found = documents(text)
    if found:
        return _pick_text(found, read_nccl_xml, source, partial, report)
    begin = _JSON.search(text)
    if begin and not text[: begin.start()].strip():
        return _read_json(text, begin.start(), source, partial)
    if is_amd_text(text):
        texts = report_texts(text, source)
        reader = read_amd_smi if is_amd_smi_text(text) else read_rocm_smi
        return _pick_text(texts, reader, source, partial, report)
    machines = _nvidia_machines(text, source, partial)
    if machines:
        return _pick(machines, source, report)
    if begin:  # warnings stand before it
        return _read_json(text, begin.start(), source, partial)
    raise ReportError(source, 0, f"nothing here is understood; expected {'; '.join(KNOWN)}")


def _nvidia_machines(text: str, source: str, partial: bool) -> Sequence[Machine]:
    """Return the machines that nvidia-smi shows, none if it printed nothing of the text."""
    try:
        return read_nvidia_reports(text, source, partial=partial)
    except ReportError as err:
        if err.line or looks_like_nvidia_smi(text):
            raise
        return ()


def _read_json(text: str, begin: int, source: str, partial: bool) -> Machine:
    """Read the JSON that begins at `begin`, by the tool that it is of."""
    body = "\n" * text.count("\n", 0, begin) + text[begin:]
    if _OWN_KEYS.search(body):
        return read_json(body, source, partial=partial)
    if _AMD_KEYS.search(body):
        return read_amd_smi(body, source, partial=partial)
    if _ROCM_KEYS.search(body):
        return read_rocm_smi(body, source, partial=partial)
    return read_json(body, source, partial=partial)


def _pick_text(
    texts: Sequence[str], read: _Reader, source: str, partial: bool, report: int | None
) -> Machine:
    """Read the wanted one of several reports; the others may be broken."""
    different = {_words(text): text for text in reversed(texts)}
    chosen = [text for text in texts if different[_words(text)] is text]
    _check_number(len(chosen), source, report)
    machine = read(chosen[(report or 1) - 1], source, partial=partial)
    return _noted(machine, len(chosen), report)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pick(machines: Sequence[Machine], source: str, report: int | None) -> Machine:
    different = list(dict.fromkeys(machines))
    _check_number(len(different), source, report)
    return _noted(different[(report or 1) - 1], len(different), report)


def _check_number(count: int, source: str, report: int | None) -> None:
    if report is not None and not 1 <= report <= count:
        has = f"{count} reports" if count > 1 else "one report"
        raise ReportError(source, 0, f"the text has {has}; --report {report} asks for another")


def _noted(machine: Machine, count: int, report: int | None) -> Machine:
    if count == 1 or report is not None:
        return machine
    return machine.with_notes(
        f"the text has {count} reports; this is the first, --report 2 takes the second"
        + (" and so on" if count > 2 else "")
    )
