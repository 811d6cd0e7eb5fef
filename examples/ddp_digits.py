"""Train a small CNN on scikit-learn's handwritten digits with torch's DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/ddp_digits.py           # over gloo
    blinkrun -np 2 --ddp examples/ddp_digits.py                  # the same script over blinkrun

Nothing in it is from blinkrun: `--ddp` gives the ranks what torchrun gives them, and puts its
process group in the place of the one that the script asks for.
"""

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NUM_TEST = 360  # of 1797 images


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="images a rank and step")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of one rank")
    return parser.parse_args()


def load_data():
    """Return the training and the test images with their classes, alike on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div_(16).unsqueeze(1)
    classes = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(2))
    train, test = order[NUM_TEST:], order[:NUM_TEST]
    return TensorDataset(images[train], classes[train]), (images[test], classes[test])


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


@torch.no_grad()
def accuracy(model, images, classes):
    """Return the share of right answers; each rank looks at its part of the images."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(images[mine]).argmax(1) == classes[mine]).sum()
    counts = torch.stack([right, torch.tensor(len(classes[mine]))]).double()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def say(line):
    if dist.get_rank() == 0:
        print(line, flush=True)


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    torch.manual_seed(dist.get_rank())  # ranks start apart: DDP makes them equal
    train_set, (test_images, test_classes) = load_data()
    sampler = DistributedSampler(train_set, seed=2, drop_last=True)
    loader = DataLoader(train_set, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9)
    start = time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, classes in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), classes)
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch + 1:2d}: loss of the last batch {loss.item():.4f}")
    seen = args.epochs * len(loader) * args.batch * size
    say(f"{seen / (time.perf_counter() - start):.0f} images/s on {size} ranks")
    say(f"test accuracy: {accuracy(model.module, test_images, test_classes):.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
