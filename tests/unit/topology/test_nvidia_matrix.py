"""What is wrong with a matrix is said with its place; what is odd is understood or noted."""

import pytest

from blinkrun.errors import ReportError
from blinkrun.topology.nvidia_smi import looks_like_nvidia_smi, read_nvidia_reports, read_nvidia_smi
from blinkrun.topology.nvidia_tables import find_tables
from blinkrun.topology.nvidia_words import unfuse
from blinkrun.topology.paste import clean_lines
from blinkrun.topology.serialize import facts

PAIR = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"


def matrix(*rows, header="GPU0 GPU1 GPU2 CPU Affinity"):
    return "\n".join(["  " + header, *rows])


THREE = ("GPU0 X NV1 SYS 0-3", "GPU1 NV1 X PHB 0-3", "GPU2 SYS PHB X 0-3")


def pairs(machine):
    return {(w.low, w.high): w.lanes for w in machine.nvlink} | {
        (p.low, p.high): p.level for p in machine.pcie
    }


WHOLE = {(0, 1): 1, (0, 2): "SYS", (1, 2): "PHB"}


@pytest.mark.parametrize(
    ("text", "where", "what", "left"),
    [
        (
            matrix(THREE[0], "GPU1 NV1 X 0-3", THREE[2]),
            3,
            "row GPU1 has 2 of 3 GPU cells",
            WHOLE,
        ),
        (
            matrix(THREE[0], "GPU1 NV1 PHB 0-3", THREE[2]),
            3,
            "row GPU1 has 2 of 3 GPU cells",
            WHOLE,
        ),
        (
            matrix(THREE[0], "GPU1 NV1 X FOO 0-3", THREE[2]),
            3,
            "row GPU1 has 'FOO' under GPU2, expected X, NV#, PIX, PXB, PHB, NODE, SYS or SOC",
            WHOLE,
        ),
        (
            matrix(THREE[0], "GPU1 ?? X PHB 0-3", THREE[2]),
            3,
            "row GPU1 has '??' under GPU0, expected X, NV#",
            WHOLE,
        ),
        (
            matrix(THREE[0], "GPU1 NV1 X OK 0-3", THREE[2]),
            3,
            "row GPU1 has 'OK' under GPU2, expected X, NV#",
            WHOLE,
        ),
        (
            matrix(THREE[0], "GPU1 X NV1 PHB 0-3", THREE[2]),
            3,
            "row GPU1 has its X under GPU0, expected it under GPU1",
            WHOLE,
        ),
        (
            matrix(THREE[0], "GPU1 NV1 NV1 PHB 0-3", THREE[2]),
            3,
            "row GPU1 has no X, expected it under GPU1",
            WHOLE,
        ),
        (
            matrix(THREE[0], THREE[1]),
            3,
            "row GPU2 is missing, expected 3 GPU rows, not 2",
            WHOLE,
        ),
        (
            matrix(THREE[0]),
            2,
            "rows GPU1, GPU2 are missing, expected 3 GPU rows, not 1",
            {(0, 1): 1, (0, 2): "SYS"},
        ),
        (
            matrix(THREE[0], "GPU1 NV2 X PHB 0-3", THREE[2]),
            3,
            "GPU0-GPU1 is NV2 in row GPU1, but NV1 in row GPU0 of line 2; expected the same",
            {(0, 2): "SYS", (1, 2): "PHB"},
        ),
        (
            matrix(*THREE, "GPU7 SYS SYS SYS X"),
            5,
            "row GPU7 has no column, expected one of GPU0..GPU2",
            WHOLE,
        ),
        (
            matrix(THREE[0], "GPU0 X NV2 SYS", *THREE[1:]),
            3,
            "row GPU0 stands here and, otherwise, in line 2",
            WHOLE,
        ),
    ],
)
def test_broken_matrix_is_refused_and_taken_in_part(text, where, what, left):
    with pytest.raises(ReportError) as caught:
        read_nvidia_smi(text, "m.txt")
    assert str(caught.value).startswith(f"m.txt:{where}: {what}")
    assert str(caught.value).endswith("; --partial takes what is whole")
    machine = read_nvidia_smi(text, "m.txt", partial=True)
    assert pairs(machine) == left
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1", "GPU2"]
    assert any(what in note for note in machine.notes)


def test_rows_that_a_partial_read_does_without_are_named():
    text = matrix(THREE[0], "GPU1 NV1 X 0-3")
    assert read_nvidia_smi(text, partial=True).missing == ("GPU1", "GPU2")


def test_several_faults_are_counted():
    text = matrix(*(f"GPU{k} X FOO FOO FOO" for k in range(3)), header="GPU0 GPU1 GPU2 GPU3")
    with pytest.raises(ReportError) as caught:
        read_nvidia_smi(text)
    text = str(caught.value)
    assert text.startswith("-:2: row GPU0 has 'FOO' under GPU1; row GPU1 has 'FOO' under GPU1, exp")
    assert "; and 2 more; --partial" in text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hello", "-: nothing of nvidia-smi here, expected a header GPU0 GPU1 … and a row"),
        ("", "-: nothing of nvidia-smi here"),
        ("GPU0 OK\nGPU1 OK\n", "-: nothing of nvidia-smi here"),
        ("\tGPU0\tGPU1\tCPU Affinity\n", "-:1: a header of GPU0, GPU1 without any row"),
        ("\tGPU0\tGPU1\nGPU0\tFOO\tBAR\n", "-:1: a header of GPU0, GPU1 without any row"),
        (" ".join(f"GPU{k}" for k in range(257)) + "\nGPU0 X", "-:1: a matrix of 257 GPUs, exp"),
        ("GPU 0: NVIDIA A100\n" * 2 + "\n" * 100_001, "-: 100039 characters in 100003 lines are"),
        (
            "x" * (5 << 20),
            "-: 5242880 characters in 0 lines are too much, expected at most 4194304",
        ),
        (
            "\n".join(f"GPU {k}: NVIDIA A100" for k in range(257)),
            "-:1: a list of 257 GPUs, expected at most 256",
        ),
        (
            "".join(f"\tGPU{k}\tGPU999\nGPU{k}\tX\tSYS\nGPU999\tSYS\tX\n" for k in range(300)),
            "-:769: 300 reports in one text, expected at most 256",
        ),
    ],
)
def test_what_is_no_report_is_refused(text, what):
    for partial in (False, True):
        with pytest.raises(ReportError) as caught:
            read_nvidia_smi(text, partial=partial)
        assert str(caught.value).startswith(what)
        assert not caught.value.partial


def test_the_same_report_a_thousand_times_is_one():
    assert len(set(read_nvidia_reports(PAIR * 1000))) == 1
    assert len(read_nvidia_reports(PAIR * 3)) == 3


@pytest.mark.parametrize(
    "text",
    [
        # The header is gone, or has lost names; tabs are gone; rows run together.
        matrix(*THREE, header=""),
        matrix(*THREE, header="GPU0 GPU1 CPU Affinity"),
        matrix("GPU0XNV1SYS0-3", "GPU1NV1XPHB0-3", "GPU2SYSPHBX0-3", header="GPU0GPU1GPU2"),
        "$ nvidia-smi topo -m GPU0 GPU1 GPU2 CPU Affinity " + " ".join(THREE) + " Legend: X = Self",
        # Lower case, marks of other tools, a diagonal of dashes, rules of a table.
        matrix(*(row.lower().replace("gpu", "GPU") for row in THREE)),
        matrix(*("-" + row for row in THREE)),
        matrix(*(row.replace("X", "-") for row in THREE)),
        "- - -\n" + matrix(*THREE),
        # A word that the log has between two rows, rows that were quoted again, a later row.
        matrix(THREE[0], "done", *THREE[1:]),
        matrix(*THREE, *THREE, "all GPU0 and GPU1 are fine"),
        matrix(*THREE, "", "GPU1 NV2 X PHB 0-3"),
        matrix(*THREE) + "\n\n" + matrix(THREE[0]),
        # Half of the rows, the header once more, the other half.
        matrix(THREE[0]) + "\n" + matrix(*THREE[1:]),
        # Broken inside of words by a terminal.
        matrix("GPU0 X NV1 SY", "S 0-3", "GPU1 NV1 X P", "HB 0-3", THREE[2]),
        matrix(*THREE, header="GPU0 GPU1 GP\nU2 CPU Affi\nnity"),
        # The old name in one triangle.
        matrix(THREE[0], THREE[1], "GPU2 SOC PHB X 0-3"),
    ],
)
def test_odd_layouts_are_read(text):
    (machine,) = read_nvidia_reports(text)
    assert pairs(machine) == WHOLE
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1", "GPU2"]


def test_count_that_a_terminal_broke_is_whole():
    row = "GPU0            X               NV12            NV1"
    text = (
        "GPU0 GPU1 GPU2\n" + row.ljust(70, "\u00a0").replace("\u00a0", "") + "\n"
        "2    0-3\nGPU1 NV12 X NV12\nGPU2 NV12 NV12 X"
    )
    long = text.replace("GPU0            X", "GPU0" + " " * 40 + "X")
    assert pairs(read_nvidia_smi(long)) == {(0, 1): 12, (0, 2): 12, (1, 2): 12}


def test_rows_in_another_order_than_columns():
    rows = ("GPU6 X NV1 SYS", "GPU2 SYS PHB X", "GPU4 NV1 X PHB")
    machine = read_nvidia_smi(matrix(*rows, header="GPU6 GPU4 GPU2"))
    assert [gpu.name for gpu in machine.gpus] == ["GPU6", "GPU4", "GPU2"]
    assert pairs(machine) == WHOLE


def test_what_is_not_stated_is_left_out_and_noted():
    rows = ("GPU0 X N/A SYS", "GPU1 N/A X SYS", "GPU2 SYS SYS X")
    machine = read_nvidia_smi(matrix(*rows, header="GPU0 GPU1 GPU2"))
    assert pairs(machine) == {(0, 2): "SYS", (1, 2): "SYS"}
    assert machine.notes == ("nothing is stated of GPU0-GPU1",)
    many = "\n".join(f"GPU{k} " + "N/A " * k + "X " + "N/A " * (3 - k) for k in range(4))
    machine = read_nvidia_smi("GPU0 GPU1 GPU2 GPU3\n" + many)
    assert machine.notes == ("nothing is stated of GPU0-GPU1, GPU0-GPU2, GPU0-GPU3, …",)


def test_on_board_switch_is_a_single_switch():
    rows = ("GPU0 X PSB PSB", "GPU1 PSB X PHB", "mlx5_0 PSB PHB X")
    machine = read_nvidia_smi(matrix(*rows, header="GPU0 GPU1 mlx5_0"))
    assert pairs(machine) == {(0, 1): "PIX"}
    assert [path.level for path in machine.gpu_nic] == ["PIX", "PHB"]


def test_nic_cells_may_be_missing():
    rows = ("GPU0 X NV1 PIX SYS", "GPU1 NV1 X SYS", "mlx5_0 PIX NODE X SYS")
    machine = read_nvidia_smi(matrix(*rows, header="GPU0 GPU1 mlx5_0 mlx5_1"))
    assert facts(machine)["gpu_nic"] == {
        "GPU0": {"mlx5_0": "PIX", "mlx5_1": "SYS"},
        "GPU1": {"mlx5_0": "NODE"},  # from the NIC's own row
    }
    assert machine.notes == ("row GPU1: cells of NICs are missing, their paths are left out",)


def test_nic_rows_that_are_broken_do_not_matter():
    rows = ("GPU0 X NV1 PIX", "GPU1 NV1 X SYS", "mlx5_0 X PIX SYS", "mlx5_7 X SYS")
    machine = read_nvidia_smi(matrix(*rows, header="GPU0 GPU1 mlx5_0"))
    assert facts(machine)["gpu_nic"] == {"GPU0": {"mlx5_0": "PIX"}, "GPU1": {"mlx5_0": "SYS"}}


def test_header_words_that_no_cell_answers_to_are_no_devices():
    rows = ("GPU0 X NV1 0-3", "GPU1 NV1 X 0-3")
    machine = read_nvidia_smi(matrix(*rows, header="GPU0 GPU1 Socket Slot"))
    assert machine.nics == ()
    assert [gpu.cpus for gpu in machine.gpus] == ["0-3", "0-3"]


def test_nics_of_a_header_without_cells_are_named():
    rows = ("GPU0 X NV1", "GPU1 NV1 X")
    machine = read_nvidia_smi(matrix(*rows, header="GPU0 GPU1 mlx5_0"))
    assert [nic.name for nic in machine.nics] == ["mlx5_0"]


def test_more_cells_than_names_are_noted():
    rows = ("GPU0 X NV1 SYS SYS 0-3", "GPU1 NV1 X SYS SYS 0-3")
    machine = read_nvidia_smi(matrix(*rows, header="GPU0 GPU1 CPU Affinity"))
    assert machine.notes == ("rows have more cells than the header has names; those are left out",)
    assert machine.gpus[0].cpus == "0-3"


def test_counts_that_ran_into_affinities_are_parted_by_the_other_triangle():
    rows = ("GPU0 X NV12 NV10", "GPU1 NV12 X NV120-63", "GPU2 NV1 NV12 X 0-63")
    machine = read_nvidia_smi(matrix(*rows, header="GPU0 GPU1 GPU2 CPU Affinity"))
    assert pairs(machine) == {(0, 1): 12, (0, 2): 1, (1, 2): 12}
    assert machine.gpus[1].cpus == "0-63"
    assert unfuse("NV4,0-3") == (("NV4", "0-3"),)
    assert unfuse("SYS") == ()
    text = matrix("GPU0 X NV4,0-3", header="GPU0 GPU1")
    assert pairs(read_nvidia_smi(text, partial=True)) == {(0, 1): 4}
    with pytest.raises(ReportError, match="'NV120-63' under GPU1"):  # nothing tells where to part
        read_nvidia_smi(matrix("GPU0 X NV120-63", header="GPU0 GPU1"))


def test_several_machines_in_one_text():
    other = PAIR.replace("NV4", "NV2").replace("CPU Affinity", "mlx5_0").replace("0-7", "PHB")
    first, second = read_nvidia_reports(PAIR + "\nand the other one:\n" + other)
    assert pairs(first) == {(0, 1): 4}
    assert pairs(second) == {(0, 1): 2}
    assert first.nics == ()
    assert [nic.name for nic in second.nics] == ["mlx5_0"]


def test_a_second_report_without_header_has_the_header_of_the_first():
    rows = PAIR.splitlines()
    other = "\n".join(rows[1:]).replace("NV4", "SYS")
    assert [pairs(m) for m in read_nvidia_reports(PAIR + other)] == [{(0, 1): 4}, {(0, 1): "SYS"}]


def test_ranks_whose_lines_came_out_mixed():
    lines = [
        f"[rank{rank}]: {line.replace('NV4', f'NV{rank + 1}')}"
        for line in PAIR.splitlines()
        for rank in (0, 1)
    ]
    assert [pairs(m) for m in read_nvidia_reports("\n".join(lines))] == [{(0, 1): 1}, {(0, 1): 2}]


def test_a_report_of_which_nothing_is_whole_is_left_out():
    text = PAIR + "\tGPU0\tGPU1\tGPU2\nGPU0\tSYS\tNV4\tX\n"
    with pytest.raises(ReportError, match=r"-:5: row GPU0 has its X under GPU2"):
        read_nvidia_reports(text)
    (machine,) = read_nvidia_reports(text, partial=True)
    assert pairs(machine) == {(0, 1): 4}
    assert machine.notes[0].startswith("left out: the matrix in line 5: row GPU0 has its X")


@pytest.mark.parametrize("order", [("-mp", "-m"), ("-m", "-mp")])
def test_levels_behind_nvlinks_come_from_the_matrix_without_them(order):
    pci = PAIR.replace("NV4", "PIX")
    text = "\n".join(f"$ nvidia-smi topo {o}\n{pci if o == '-mp' else PAIR}" for o in order)
    (machine,) = read_nvidia_reports(text)
    assert facts(machine)["nvlink"] == [[0, 1, 4]]
    assert facts(machine)["pcie"] == {"0-1": "PIX"}


def test_two_matrices_without_commands_are_two_machines():
    pci = PAIR.replace("NV4", "PIX")
    assert len(read_nvidia_reports(PAIR + pci)) == 2
    mp = "topo -mp\n" + pci
    assert len(read_nvidia_reports(mp + "topo -m\n" + PAIR + mp)) == 2


P2P = " \tGPU0\tGPU1\n GPU0\tX\t{}\n GPU1\t{}\tX\n"


def test_states_of_peers_belong_to_the_matrix_beside_them():
    for text in (PAIR + P2P.format("GNS", "GNS"), P2P.format("GNS", "GNS") + PAIR):
        (machine,) = read_nvidia_reports(text)
        assert machine.p2p == ((0, 1, "GNS"),)
        assert pairs(machine) == {(0, 1): 4}
        assert machine.source == "nvidia-smi topo -m + nvidia-smi topo -p2p"


def test_the_worst_state_counts():
    one_way = read_nvidia_smi(PAIR + P2P.format("OK", "CNS"))
    assert one_way.p2p == ((0, 1, "CNS"),)
    read_only = f"topo -p2p r\n{P2P.format('OK', 'OK')}topo -p2p w\n{P2P.format('NS', 'NS')}"
    assert read_nvidia_smi(PAIR + read_only).p2p == ((0, 1, "NS"),)


def test_states_of_nvlink_and_atomics_do_not_tell_of_peers():
    others = f"topo -p2p n\n{P2P.format('NS', 'NS')}topo -p2p a\n{P2P.format('CNS', 'NS')}"
    both = read_nvidia_smi(f"{PAIR}\ntopo -p2p r\n{P2P.format('OK', 'OK')}{others}")
    assert both.p2p == ((0, 1, "OK"),)
    assert both.notes == ("topo -p2p an: not about peer access in general; left out",)
    alone = read_nvidia_smi(f"{PAIR}\n{others}")
    assert alone.p2p == ((0, 1, "CNS"),)
    assert alone.notes == ("topo -p2p an: not about peer access in general; the only ones here",)


def test_states_of_some_gpus_only():
    text = matrix(*THREE) + "\n" + P2P.replace("GPU0", "GPU2").format("OK", "OK")
    assert read_nvidia_smi(text).p2p == ((1, 2, "OK"),)


def test_states_alone_tell_no_pairs():
    machine = read_nvidia_smi(P2P.format("OK", "OK"))
    assert (machine.nvlink, machine.pcie, machine.p2p) == (None, None, ((0, 1, "OK"),))
    assert machine.notes == ("topo -p2p does not tell how GPUs are joined; add nvidia-smi topo -m",)
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1"]


def test_broken_states_are_refused_and_taken_in_part():
    text = "GPU0 GPU1 GPU2\nGPU0 X OK OK\nGPU1 OK X FOO\nGPU2 OK SYS X\n"
    with pytest.raises(ReportError, match="row GPU1 has 'FOO' under GPU2; row GPU2 has 'SYS' und"):
        read_nvidia_smi(text)
    machine = read_nvidia_smi(text, partial=True)
    assert machine.p2p == ((0, 1, "OK"), (0, 2, "OK"))
    assert machine.missing == ("GPU1", "GPU2")


def test_what_no_machine_has_is_not_kept():
    (table,) = find_tables(clean_lines("GPU0 " + " ".join(f"NIC{k}" for k in range(5000))))
    assert 2000 < len(table.columns) < 5000
    (table,) = find_tables(clean_lines("GPU0 GPU1\nGPU0" + " X" * 5000))
    assert 2000 < len(table.rows[0].words) < 5000


def test_long_texts_are_recognised_by_a_name():
    assert looks_like_nvidia_smi("\n" * 100_001 + "GPU0")
    assert not looks_like_nvidia_smi("\n" * 100_001)
