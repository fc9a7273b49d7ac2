"""Two tasks in a row: with the posterior as prior the network remembers the first; without it, it forgets."""

import torch
from torch import nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.data import load, permuted

tasks = [task.split(validation=0.0) for task in permuted(load("digits"), tasks=2, seed=0)]


def learn(remember: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256, bias=False), nn.BatchNorm1d(256, affine=False), nn.ReLU(),
        nn.Linear(256, 10, bias=False), nn.BatchNorm1d(10, affine=False),
    )  # fmt: skip
    binary, _ = bb.split_parameters(model)
    optimizer = bb.BayesBiNN(binary, lr=0.03, train_set_size=1437, temperature=0.3, initial_strength=0.1)
    for task in tasks:
        for epoch in range(20):
            optimizer.param_groups[0]["lr"] = 0.03 * (1 - epoch / 20)
            for x, y in task.train.batches(50, seed=0, epoch=epoch):
                with optimizer.sampled_params(train=True):
                    F.cross_entropy(model(x), y).backward()
                optimizer.step()
        if remember:
            optimizer.set_prior(optimizer.posterior())  # the posterior becomes the prior of the next task
    accuracies = []
    for task in tasks:
        x, y = task.test.whole()
        # The BatchNorm statistics are the last task's; use those of these inputs instead, for each sampled network.
        own = bb.recalibrate(model, optimizer.posterior(), [x], samples=10)
        prediction = bb.predict(model, optimizer.posterior(), x, samples=10, statistics=own)
        accuracies.append(100 * bb.metrics.accuracy(prediction.probabilities, y))
    return accuracies


for remember in (True, False):
    first, second = learn(remember)
    print(f"{'with' if remember else 'without'} prior: first task {first:.1f} %, second task {second:.1f} %")
