"""A plain PyTorch loop: only the three marked lines differ from a loop with Adam."""

import torch
from torch import nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.data import load_digits

torch.manual_seed(0)
data = load_digits()
model = nn.Sequential(
    nn.Linear(64, 256, bias=False), nn.BatchNorm1d(256, affine=False), nn.ReLU(),
    nn.Linear(256, 10, bias=False), nn.BatchNorm1d(10, affine=False),
)  # fmt: skip
binary, _ = bb.split_parameters(model)  # (1)
optimizer = bb.BayesBiNN(binary, lr=1e-3, train_set_size=1437, temperature=1e-10)  # (2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
for _ in range(20):
    for rows in torch.randperm(1437).split(50):
        with optimizer.sampled_params(train=True):  # (3)
            F.cross_entropy(model(data.train_inputs[rows]), data.train_targets[rows]).backward()
        optimizer.step()
    scheduler.step()
prediction = bb.predict(model, optimizer.posterior(), data.test_inputs)
accuracy = bb.metrics.accuracy(prediction.probabilities, data.test_targets)
print(f"{bb.check_binary(model):,} weights, each -1 or +1: {100 * accuracy:.1f} % of the test digits are right")
