"""Train a small CNN on scikit-learn's handwritten digits, on as many ranks as there are.

    blinkrun -np 2 python examples/torch_digits.py
    python examples/torch_digits.py                   # one process, nothing else changes

Each rank takes its share of every batch, gradients are averaged over the ranks as backward makes
them, and the learning rate grows with the number of ranks, since the joined batch does.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import blinkrun
import blinkrun.torch as blink

NUM_TEST = 360  # of 1797 images


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="images a rank and step")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=2)
    return parser.parse_args(argv)


def load_data(seed):
    """Return (training images, classes), (test images, classes), alike on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div_(16).unsqueeze(1)
    classes = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, classes = images[order], classes[order]
    train, test = slice(NUM_TEST, None), slice(NUM_TEST)
    return (images[train], classes[train]), (images[test], classes[test])


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def shards(num_images, batch, epoch, seed):
    """Yield this rank's indices for every step: an equal share of each joined batch."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    order = torch.randperm(num_images, generator=generator)
    joined = batch * blink.size()
    for start in range(0, num_images - joined + 1, joined):
        yield order[start + blink.rank() : start + joined : blink.size()]


def train_epoch(model, optimizer, data, args, epoch):
    """Return the mean loss over all ranks and the images that they trained on."""
    model.train()
    images, classes = data
    losses = []
    for indices in shards(len(images), args.batch, epoch, args.seed):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[indices]), classes[indices])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = blink.allreduce(torch.stack(losses).mean(), name="loss")
    return mean.item(), len(losses) * args.batch * blink.size()


@torch.no_grad()
def accuracy(model, data):
    """Return the share of right answers; each rank looks at its part of the images."""
    model.eval()
    images, classes = (part[blink.rank() :: blink.size()] for part in data)
    right = (model(images).argmax(1) == classes).sum()
    counts = torch.stack([right, torch.tensor(len(classes))]).double()
    right, seen = blink.allreduce(counts, op=blink.Sum, name="accuracy").tolist()
    return right / seen


def train(args):
    """Train and return the loss of every epoch, the test accuracy and the images a second."""
    torch.manual_seed(args.seed + blink.rank())  # ranks start apart: broadcast makes them equal
    train_data, test_data = load_data(args.seed)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * blink.size(), momentum=0.9)
    optimizer = blink.DistributedOptimizer(optimizer, model.named_parameters())
    blink.broadcast_parameters(model.state_dict(), root_rank=0)
    blink.broadcast_optimizer_state(optimizer, root_rank=0)
    losses, images, start = [], 0, time.perf_counter()
    for epoch in range(args.epochs):
        loss, seen = train_epoch(model, optimizer, train_data, args, epoch)
        images += seen
        losses.append(loss)
        say(f"epoch {epoch + 1:2d}: loss {loss:.4f}")
    speed = images / (time.perf_counter() - start)
    return losses, accuracy(model, test_data), speed


def say(line):
    if blink.rank() == 0:
        print(line, flush=True)


def main(argv=None):
    args = parse_args(argv)
    blink.init()
    say(blinkrun.world().describe())
    losses, test_accuracy, speed = train(args)
    say(f"{speed:.0f} images/s on {blink.size()} rank{'s'[: blink.size() > 1]}")
    say(f"test accuracy: {test_accuracy:.2f}")
    blink.shutdown()
    return losses


if __name__ == "__main__":
    main()
