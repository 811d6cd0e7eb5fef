"""Keras' torch backend with gradients that pass for ones on a (fake) device."""

import gc

import keras
import torch
from keras_optimizer_parts import batches, digest, fit, mlp
from support.fake_cuda import FakeMachine
from support.torch_disguise import Disguise

import blinkrun.tf.keras as blink
from blinkrun.engine.handle import Handle
from blinkrun.errors import InvalidBufferError, MismatchError
from blinkrun.tf.keras.on_torch import Reducer
from blinkrun.tf.keras.settings import Settings


def run_all():
    torch.set_num_threads(1)
    blink.init()
    rank, size = blink.rank(), blink.size()
    machine = FakeMachine(size, lenient=True, seed=rank)
    machine.install()
    places = [False]
    disguise = Disguise(machine, rank, lambda tensor: places[0] and tensor.is_floating_point())
    wait_on = Handle.wait_on

    def waited(handle, stream):  # what torch computes runs on the host at once
        wait_on(handle, stream)
        disguise.device.synchronize(stream)

    Handle.wait_on = waited
    found = {"cpu": trained()}
    places[0] = True
    found |= {"device": trained(), "launches": len(machine.launches), "said": different_names()}
    disguise._chooses = lambda tensor: tensor.dim() == 1
    found["places"] = in_two_places()
    gc.collect()
    blink.shutdown()
    disguise.close()
    found["left"] = machine.leaks(within_s=10)
    machine.close()
    return found


def trained():
    model, (mine, _) = mlp(), batches()
    model.compile(blink.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    fit(model, mine, 4)
    return digest(model)


def reduced(names, shapes, owner):
    grads = [torch.full(shape, blink.rank() + 1.0) for shape in shapes]
    settings = Settings(
        name=None,
        compression=blink.Compression.none,
        sparse_as_dense=False,
        gradient_predivide_factor=1.0,
        op=blink.Average,
        backward_passes_per_step=1,
        average_aggregated_gradients=False,
        groups=None,
        process_set=blink.global_process_set,
        scale_local_gradients=True,
        bucket_bytes=8,  # several buckets, had they any here
    )
    return Reducer(settings, owner).reduce(grads, names, [None] * len(grads))


def different_names():
    """What ranks are told whose gradients are others, in more buckets, and a reduction after."""
    names, shapes = ("w", "b"), ((3,), (3,))
    if blink.rank():
        names, shapes = ("w", "c", "d"), ((3,), (3,), (3,))
    try:
        reduced(names, shapes, "different")
        said = ""
    except MismatchError as err:
        said = str(err)
    return [said, [grad.tolist() for grad in reduced(("w",), ((2,),), "same")]]


def in_two_places():
    try:
        reduced(("w", "b"), ((3,), (3, 3)), "places")
    except InvalidBufferError as err:
        return str(err)
    return ""
