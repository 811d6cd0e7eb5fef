"""Reads ``rocm-smi --showtopo``: weights, hops and link types of every pair, and NUMA nodes."""

from __future__ import annotations

from blinkrun.topology.amd_json import is_rocm_json, load_json, rocm_report
from blinkrun.topology.amd_machine import machine_of
from blinkrun.topology.amd_tables import is_amd_text, read_tables, report_texts
from blinkrun.topology.complaints import Complaints
from blinkrun.topology.machine import Machine
from blinkrun.topology.paste import clean_lines

_TOOL = "rocm-smi --showtopo"


def read_rocm_smi(text: str, source: str, *, partial: bool = False) -> Machine:
    r"""Return the machine that ``rocm-smi --showtopo`` describes.

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
        Pairs that are joined by xGMI are in `xgmi`, those by PCIe in `pcie`, with hops and weight
        where they are told. Without a table of link types both are not told.

    Raises
    ------
    ReportError
        If there is no such table, or a row is missing, torn or contradicts another.

    Examples
    --------
    >>> table = "= Link Type between two GPUs =\n GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n"
    >>> read_rocm_smi(table, "topo.txt").xgmi
    (Xgmi(low=0, high=1, lanes=None, hops=None, weight=None),)
    """
    complaints = Complaints(source, partial)
    if not is_amd_text(text):
        value = load_json(text, source)
        report = rocm_report(value if is_rocm_json(value) else {})
    else:
        report = read_tables(clean_lines(report_texts(text, source)[0], source), complaints)
    return machine_of(report, _TOOL, complaints)
