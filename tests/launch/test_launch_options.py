"""What options set in the ranks' environment, and what of it a rank really gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.launching import launch

from blinkrun import env
from blinkrun.errors import UsageError
from blinkrun.launcher.horovod import alias_folder
from blinkrun.launcher.options import parse
from blinkrun.launcher.settings import settings_of

SHOW = "import os, sys; print(*(f'{n}={os.environ.get(n)}' for n in sys.argv[1:]), sep='|')"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {}),
        (["--stall-warning", "2.5"], {env.STALL_WARNING: "2.5"}),
        (["--stall-warning=0"], {env.STALL_WARNING: "0"}),
        (["--stall-shutdown", "300"], {env.STALL_SHUTDOWN: "300"}),
        (["--fusion-bytes", "64M"], {env.FUSION: str(64 << 20)}),
        (["--fusion-bytes", "0"], {env.FUSION: "0"}),
        (["--check-nan"], {env.CHECK_NAN: "1"}),
        (["--gpus-per-rank", "1/2"], {env.GPUS_PER_RANK: "1/2"}),
        (["--gpus-per-rank=2"], {env.GPUS_PER_RANK: "2"}),
        (["--timeline", "/t.json"], {env.TIMELINE: "/t.json"}),
        (["--timeline", "t.json"], {env.TIMELINE: f"{os.getcwd()}/t.json"}),
        (["--horovod"], {"PYTHONPATH": f"{alias_folder()}:/mine"}),
    ],
)
def test_variables_of_options(words: list[str], found: dict[str, str]) -> None:
    assert settings_of(parse([*words, "train.py"]), {"PYTHONPATH": "/mine"}) == found


def test_ddp_names_a_free_port() -> None:
    found = settings_of(parse(["--ddp", "train.py"]), {})
    assert found[env.DDP] == "1"
    assert found["MASTER_ADDR"] == "127.0.0.1"
    assert 1024 <= int(found["MASTER_PORT"]) < 65536
    assert found["TORCHELASTIC_RUN_ID"]


@pytest.mark.parametrize(
    "words",
    [
        ["--fusion-bytes", "much"],
        ["--stall-warning", "nan"],
        ["--gpus-per-rank", "0.5"],
        ["--gpus-per-rank", "2/3"],
    ],
)
def test_values_that_make_no_sense(words: list[str]) -> None:
    with pytest.raises(UsageError, match=words[0]):
        settings_of(parse([*words, "train.py"]), {})


def test_a_wrong_variable_of_horovod_starts_no_ranks() -> None:
    with pytest.raises(UsageError, match="HOROVOD_CACHE_CAPACITY=x"):
        settings_of(parse(["--horovod", "train.py"]), {"HOROVOD_CACHE_CAPACITY": "x"})


def test_ranks_see_what_options_set_and_minus_x_goes_before(tmp_path: Path) -> None:
    names = [env.FUSION, env.CHECK_NAN, env.STALL_WARNING, "MASTER_PORT", "PYTHONPATH"]
    ended = launch(
        [
            *("-np", "2", "--no-prefix", "--fusion-bytes", "1M", "--check-nan"),
            *("--stall-warning", "7"),
            *("--ddp", "--horovod", "-x", f"{env.STALL_WARNING}=8", "-x", "MASTER_PORT=4321"),
            *("-x", "PYTHONPATH=/mine", "python", "-c", SHOW, *names),
        ],
        cwd=tmp_path,
    )
    assert ended.code == 0, ended.err
    path = f"{alias_folder()}:/mine"
    line = f"{names[0]}=1048576|{names[1]}=1|{names[2]}=8|MASTER_PORT=4321|PYTHONPATH={path}"
    assert ended.out.splitlines() == [line] * 2


def test_verbose_says_what_of_horovod_has_no_effect(tmp_path: Path) -> None:
    ended = launch(
        ["-np", "1", "--verbose", "--horovod", "-x", "HOROVOD_CYCLE_TIME=1", "true"],
        cwd=tmp_path,
    )
    assert ended.code == 0, ended.err
    assert "horovod: blinkrun stands in for " in ended.err
    assert ended.err.count("HOROVOD_CYCLE_TIME has no effect: nothing runs in cycles") == 1
