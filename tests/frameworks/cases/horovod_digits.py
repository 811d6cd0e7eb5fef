"""A training script as users of Horovod have them: nothing in it knows of blinkrun."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts write it
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
args = parser.parse_args()

hvd.init()
torch.manual_seed(1)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).reshape(-1, 64) / 16
labels = torch.tensor(digits.target)
train, test = (
    TensorDataset(images[part], labels[part]) for part in (slice(0, 1500), slice(1500, None))
)


def sampled(data, batch_size):
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    return sampler, DataLoader(data, batch_size=batch_size, sampler=sampler)


train_sampler, train_loader = sampled(train, args.batch_size)
test_sampler, test_loader = sampled(test, 1000)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train(compression, gradient_predivide_factor):
    torch.manual_seed(hvd.rank())  # ranks start apart; the broadcast brings them together
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum, nesterov=True
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Average,
        gradient_predivide_factor=gradient_predivide_factor,
    )
    for epoch in range(args.epochs):
        model.train()
        train_sampler.set_epoch(epoch)
        for data, target in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        model.eval()
        correct = sum(
            (model(data).argmax(1) == target).sum().item() for data, target in test_loader
        )
        accuracy = metric_average(correct / len(test_sampler), "avg_accuracy")
    weights = hvd.allgather_object([p.detach().tolist() for p in model.parameters()])
    if hvd.rank() == 0:
        same = all(each == weights[0] for each in weights)
        print(f"accuracy {accuracy:.3f}, ranks agree: {same}")


train(hvd.Compression.none, 1.0)
train(hvd.Compression.fp16, 2.0)
