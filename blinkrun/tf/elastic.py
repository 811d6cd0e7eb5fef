"""Absent: importing it says why."""

from blinkrun.tf import ELASTIC

raise ImportError(ELASTIC, name=__name__)
