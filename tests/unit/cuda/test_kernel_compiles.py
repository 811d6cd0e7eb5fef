"""The kernel compiles for every kind of device that is supported, and keeps to registers.

No GPU is needed: NVRTC comes as a package. Of the machine code the assembler's own report is read.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from blinkrun.executors import kernel_source
from blinkrun.types import DType

LABELS = [dtype.label for dtype in DType]
ARCHITECTURES = ["sm_75", "sm_80", "sm_90", "sm_100"]
REPORT = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (\d+) registers"
)
# What a V100 has (compute capability 7.0), by the "target ISA notes" of the PTX manual. CUDA 12
# compiles for it; CUDA 13, which is here, does not.
OPCODES_OF_SM_70 = """
    abs add and atom bar bfe bfi bra brx call clz cnot cos cvt cvta div ex2 exit fence fma isspacep
    ld lg2 lop3 mad max membar min mov mul nanosleep neg not or popc prmt rcp rem ret sad selp set
    setp shf shfl shl shr sin slct sqrt st sub vote xor"""


@cache
def nvrtc() -> ModuleType:
    """The compiler; a skip where there is none."""
    reason = "cupy with its nvrtc is not installed"
    library = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason=reason)
    try:
        library.getVersion()
    except RuntimeError as err:
        pytest.skip(f"{reason}: {err}")
    return library


def compiled(label: str, architecture: str) -> tuple[bytes, str]:
    """Return machine code or PTX, and what compiler and assembler say."""
    library = nvrtc()
    headers = kernel_source.headers()
    program = library.createProgram(
        kernel_source.source(),
        "kernels.cu",
        [text.encode() for text in headers.values()],
        [name.encode() for name in headers],
    )
    is_code = architecture.startswith("sm_")
    options = kernel_source.options(label, architecture)
    try:
        library.compileProgram(program, (*options, *["--ptxas-options=-v"] * is_code))
    except library.NVRTCError as err:
        pytest.fail(f"{err}: {library.getProgramLog(program)}")
    try:
        made = (library.getCUBIN if is_code else library.getPTX)(program)
        return bytes(made, "ascii") if isinstance(made, str) else made, library.getProgramLog(
            program
        )
    finally:
        library.destroyProgram(program)


@cache
def ptx(label: str) -> str:
    return compiled(label, "compute_75")[0].decode().rstrip("\0")


def check_report(report: str, kernels: int) -> None:
    assert "warning" not in report
    found = REPORT.findall(report.replace("ptxas         .", ""))
    assert len(found) == kernels, report
    for stack, stored, loaded, registers in found:
        assert (stack, stored, loaded) == ("0", "0", "0"), report
        assert int(registers) * kernel_source.THREADS <= 65536


def cost(label: str, architecture: str) -> list[pytest.MarkDecorator]:
    """Every type on the oldest and, by nvcc, on one more; elsewhere one that the hardware adds and
    one that takes the most code. The others are for `make kernels`."""
    if (label, architecture) == ("float32", "sm_90"):
        return []
    if architecture == "sm_75" or label in ("float32", "bfloat16"):
        return [pytest.mark.slow]
    return [pytest.mark.slow, pytest.mark.every_kernel]


@pytest.mark.parametrize(
    ("label", "architecture"),
    [
        pytest.param(label, architecture, marks=cost(label, architecture))
        for architecture in ARCHITECTURES
        for label in LABELS
    ],
)
def test_kernels_keep_everything_in_registers(label: str, architecture: str):
    """No stack, no spills, and 512 threads fit on a multiprocessor."""
    code, report = compiled(label, architecture)
    assert kernel_source.entry_point(label).encode() in code
    check_report(report, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nvcc_compiles_all_entry_points(tmp_path: Path):
    nvcc = shutil.which("nvcc")
    if not nvcc:
        pytest.skip("nvcc is not installed")
    source = Path(kernel_source.__file__).parents[1] / "csrc" / "kernels.cu"
    target = str(tmp_path / "kernels.cubin")
    options = [*kernel_source.common_options(), "-arch=sm_90", "-Werror=all-warnings", "-Xptxas=-v"]
    done = subprocess.run(
        [nvcc, *options, "-cubin", "-o", target, str(source)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_report(done.stderr, len(DType))


@pytest.mark.parametrize("label", ["float32", *(pytest.param("bfloat16", marks=pytest.mark.slow),)])
def test_flags_are_read_and_written_at_system_scope(label: str):
    """Other devices and the host write them; what has no order is plain, and ordered by flags."""
    text = ptx(label)
    orders = "acquire|release|acq_rel|relaxed|volatile|sc|mmio"
    kinds = set(re.findall(rf"\b(?:ld|st|fence|atom|red)\.(?:\w+\.)*?(?:{orders})[\w.]*", text))
    assert kinds == {
        "ld.acquire.sys.global.u64",
        "ld.relaxed.sys.global.u32",
        "fence.acq_rel.sys",
        "st.relaxed.sys.global.u64",
        "st.relaxed.sys.global.u32",
        # among the blocks of one launch
        "atom.add.acq_rel.gpu.global.u32",
        "atom.cas.acq_rel.gpu.global.b32",
    }
    assert "membar" not in text
    assert ".nc." not in text  # the path for data that nobody writes


def test_the_block_touches_flags_by_its_machine_only():
    """A plain access to what others write would be one without scope."""
    headers = kernel_source.headers()
    text = "".join(headers[name] for name in ("device_block.hpp", "device_entry.hpp"))
    text = re.sub(r"//.*", "", text)
    shared = re.compile(
        r"->abort|\]\.seq\b|post_of\(\w+\)\.seq|\.through|->through|\.started|report\.code"
    )
    statements = [each for each in re.split(r"[;{}]", text) if shared.search(each)]
    assert len(statements) >= 6
    for statement in statements:
        assert re.search(r"machine_\.(load|store|peek)\(", statement), statement


def test_transfers_are_of_16_bytes_and_several_are_under_way():
    """Eight loads of a thread follow one another before a sum is made."""
    accesses = re.findall(r"\b(ld\.global\.v4|st\.global\.v4|add\.(?:rn\.)?f32)", ptx("float32"))
    text = "".join("L" if each.startswith("ld") else "." for each in accesses)
    assert max(map(len, re.findall("L+", text))) >= 8


@pytest.mark.parametrize("label", ["float32", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_kernel_uses_nothing_that_volta_lacks(label: str):
    text = re.sub(r"//.*", "", ptx(label))
    opcodes = set(re.findall(r"^\s*(?:@!?%p\d+ )?([a-z]\w*)[.\s][^:\n]*;$", text, re.MULTILINE))
    assert {"ld", "st", "atom", "fence", "nanosleep", "bar", "add"} <= opcodes
    assert opcodes <= set(OPCODES_OF_SM_70.split())
    assert "cvt.rn.bf16" not in text
    assert not re.search(r"\b(min|max)\.NaN", text)
