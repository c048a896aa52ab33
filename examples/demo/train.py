"""Train a small neural network on generated data, with the standard library only.

The data are points of two noisy half moons. The network (one hidden layer, plain gradient
descent) learns to which of them a point belongs.

    python3 train.py --lr 0.1
"""

import argparse
import json
import math
import os
import random
import time


def moons(count, noise, seed):
    """Return points of two interleaved half circles, each with the number of its moon."""
    rng = random.Random(seed)
    points = []
    for index in range(count):
        angle, moon = math.pi * rng.random(), index % 2
        x, y = math.cos(angle), math.sin(angle)
        if moon:
            x, y = 1 - x, 0.5 - y
        points.append((x + rng.gauss(0, noise), y + rng.gauss(0, noise), moon))
    return points


class Network:
    """Two numbers in, one hidden layer, one probability out."""

    def __init__(self, hidden, seed):
        rng = random.Random(seed)
        self.inner = [[rng.gauss(0, 1), rng.gauss(0, 1), 0.0] for _ in range(hidden)]
        self.outer = [rng.gauss(0, 1) / math.sqrt(hidden) for _ in range(hidden)]
        self.bias = 0.0

    def forward(self, x, y):
        """Return the values of the hidden layer and the probability of moon 1."""
        values = [math.tanh(a * x + b * y + c) for a, b, c in self.inner]
        total = self.bias + sum(map(float.__mul__, self.outer, values))
        return values, 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))

    def learn(self, x, y, moon, lr):
        """Make one gradient step; return the loss before it."""
        values, probability = self.forward(x, y)
        error = probability - moon
        for unit, value in enumerate(values):
            back = lr * error * self.outer[unit] * (1 - value * value)
            self.outer[unit] -= lr * error * value
            weights = self.inner[unit]
            weights[0] -= back * x
            weights[1] -= back * y
            weights[2] -= back
        self.bias -= lr * error
        return -math.log(max(probability if moon else 1 - probability, 1e-12))


def accuracy(network, points):
    """Return the share of correctly classified points."""
    return sum((network.forward(x, y)[1] > 0.5) == moon for x, y, moon in points) / len(points)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True, help="learning rate")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--out", default="results", help="directory for the result")
    args = parser.parse_args()

    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    print(f"lr {args.lr:g}, {args.epochs} epochs, GPU {gpu or 'none'}", flush=True)
    train, test = moons(600, 0.15, seed=1), moons(400, 0.15, seed=2)
    network, shuffle, began = Network(10, seed=3), random.Random(4), time.monotonic()
    for epoch in range(1, args.epochs + 1):
        shuffle.shuffle(train)
        loss = sum(network.learn(*point, args.lr) for point in train) / len(train)
        if epoch in (1, 5, 10) or epoch % 30 == 0:
            print(f"epoch {epoch:3}  loss {loss:.4f}", flush=True)
    result = {
        "lr": args.lr,
        "loss": loss,
        "accuracy": accuracy(network, test),
        "seconds": time.monotonic() - began,
        "gpu": gpu,
        "job": os.environ.get("STOKER_JOB_ID", ""),
    }
    print(f"accuracy {result['accuracy']:.1%} on points it has not seen")
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, f"lr-{args.lr:g}.json"), "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
