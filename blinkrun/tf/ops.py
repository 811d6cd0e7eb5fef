"""All collectives on TensorFlow tensors under one name; see the modules that they come from.

They take tensors, variables, and what a tensor can be made of, eagerly and in a ``tf.function``.
"""

from blinkrun.adapter.operations import Adasum, Average, Max, Min, Product, Sum
from blinkrun.tf.ops_gather import allgather, broadcast, broadcast_, grouped_allgather
from blinkrun.tf.ops_reduce import allreduce, grouped_allreduce
from blinkrun.tf.ops_scatter import alltoall, grouped_reducescatter, reducescatter

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]
