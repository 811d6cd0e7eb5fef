"""Where a job's ranks go: what ``-H``, a host file or a batch system says, seen from here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from blinkrun.errors import UsageError
from blinkrun.launcher.addresses import interface_addresses, is_local
from blinkrun.launcher.allocation import Allocation, from_environ
from blinkrun.launcher.hosts import HostTarget, merged, parse_hosts, place, read_hostfile
from blinkrun.launcher.options import Options
from blinkrun.launcher.remote import agent_words
from blinkrun.launcher.spec import MAX_RANKS, Hosts


def hosts_of(options: Options, environ: Mapping[str, str]) -> tuple[int | None, Hosts | None]:
    """Return the number of ranks (None: not said), and their hosts (None: all on this one).

    The command line goes before what a batch system says.

    Raises
    ------
    UsageError
        If hosts or slots make no sense, there are more ranks than slots, or an option for other
        hosts is given where there is none.
    """
    given = _given(options)
    allocation = from_environ(environ) if given is None else None
    targets = given if given is not None else allocation.targets if allocation else ()
    if not targets:
        _refuse_options(options)
        return options.num_ranks, None
    targets = with_own_name(targets)
    own = os.uname().nodename
    if all(target.name == own for target in targets):
        return _here(options, targets, allocation), None
    num_ranks = options.num_ranks
    if num_ranks is None:
        num_ranks = sum(target.slots for target in targets)
    if not 1 <= num_ranks <= MAX_RANKS:
        raise UsageError(f"-np {num_ranks}: need 1 to {MAX_RANKS} ranks")
    placements = place(targets, num_ranks, oversubscribe=options.oversubscribe)
    if all(place.name == own for place in placements):
        return num_ranks, None
    agent = agent_words(options.launch_agent, environ)
    return num_ranks, Hosts(placements, agent, options.interfaces, options.preflight)


def _given(options: Options) -> tuple[HostTarget, ...] | None:
    """Return the hosts that the command line names, or None."""
    if options.hosts and options.hostfile is not None:
        raise UsageError("-H and --hostfile both name hosts; give one of them")
    if options.hosts:
        return parse_hosts(",".join(options.hosts))
    return None if options.hostfile is None else read_hostfile(options.hostfile)


def with_own_name(targets: Sequence[HostTarget]) -> tuple[HostTarget, ...]:
    """Return the hosts with the name that this one has wherever it is meant: nobody calls itself.

    A host that comes under several names gets the slots of all.
    """
    interfaces = interface_addresses()
    own = os.uname().nodename
    return merged(
        HostTarget(own, target.slots, target.most) if is_local(target.name, interfaces) else target
        for target in targets
    )


def _here(
    options: Options, targets: Sequence[HostTarget], allocation: Allocation | None
) -> int | None:
    """Return the number of ranks where this host is the only one."""
    slots = sum(target.slots for target in targets)
    if options.num_ranks is None:
        return slots
    # A batch system counts tasks, and a job on one host may have more ranks than cores.
    if allocation is None:
        place(targets, max(1, options.num_ranks), oversubscribe=options.oversubscribe)
    return options.num_ranks


def _refuse_options(options: Options) -> None:
    for name, is_given in (
        ("--launch-agent", options.launch_agent is not None),
        ("--network-interface", bool(options.interfaces)),
    ):
        if is_given:
            raise UsageError(
                f"{name} is for jobs on several hosts; name them with -H or --hostfile"
            )
