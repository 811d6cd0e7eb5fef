"""Reads ``amd-smi topology``: as ``rocm-smi``, but the GPUs are called by their bus ids."""

from __future__ import annotations

from blinkrun.topology.amd_json import amd_report, load_json
from blinkrun.topology.amd_machine import machine_of
from blinkrun.topology.amd_tables import is_amd_text, read_tables, report_texts
from blinkrun.topology.complaints import Complaints
from blinkrun.topology.machine import Machine
from blinkrun.topology.paste import clean_lines

_TOOL = "amd-smi topology"


def read_amd_smi(text: str, source: str, *, partial: bool = False) -> Machine:
    r"""Return the machine that ``amd-smi topology`` describes.

    Parameters
    ----------
    text : str
        The tables, any of them, with what people paste around them; or the output of ``--json``.
        Of several reports the first is read.
    source : str
        The file's name, for messages.
    partial : bool, default False
        Take the rows that are whole where others are not; one row of a pair is enough.

    Returns
    -------
    Machine
        As of `read_rocm_smi`; `p2p` tells for which pairs the link is enabled.

    Raises
    ------
    ReportError
        If there is no such table, or a row is missing, torn or contradicts another.

    Examples
    --------
    >>> table = '''LINK TYPE TABLE:
    ...              0000:03:00.0 0000:0c:00.0
    ... 0000:03:00.0 SELF         PCIE
    ... 0000:0c:00.0 PCIE         SELF'''
    >>> [gpu.name for gpu in read_amd_smi(table, "topo.txt").gpus]
    ['0000:03:00.0', '0000:0c:00.0']
    """
    complaints = Complaints(source, partial)
    if is_amd_text(text):
        report = read_tables(clean_lines(report_texts(text, source)[0], source), complaints)
    else:
        report = amd_report(load_json(text, source), complaints)
    return machine_of(report, _TOOL, complaints)
