"""From a topology to a plan: which trees carry which part of the data.

`make_plan` plans everything, `store.plan_of` keeps plans on disk, `pack` solves one collective.
See docs/architecture.md for where this layer stands.
"""
