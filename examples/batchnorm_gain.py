"""Train binary weights with BayesBiNN, and real BatchNorm gains and biases with Adam."""

import torch
from torch import nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.data import load_digits

torch.manual_seed(0)
data = load_digits()
model = nn.Sequential(
    nn.Linear(64, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(),
    nn.Linear(256, 10, bias=False), nn.BatchNorm1d(10),
)  # fmt: skip
binary, real = bb.split_parameters(model)
weights = bb.BayesBiNN(binary, lr=1e-3, train_set_size=1437, temperature=1e-10)
gains = torch.optim.Adam([parameter for _, parameter in real], lr=1e-2)
bb.check_owners(model, weights, gains)  # every parameter has exactly one optimizer

schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20) for optimizer in (weights, gains)]
for _ in range(20):
    for rows in torch.randperm(1437).split(50):
        gains.zero_grad()
        with weights.sampled_params(train=True):
            F.cross_entropy(model(data.train_inputs[rows]), data.train_targets[rows]).backward()
        weights.step()
        gains.step()
    for scheduler in schedulers:
        scheduler.step()
prediction = bb.predict(model, weights.posterior(), data.test_inputs)
accuracy = bb.metrics.accuracy(prediction.probabilities, data.test_targets)
spread = model[1].weight.detach().std()
print(f"learned gains spread by {spread:.2f}; {100 * accuracy:.1f} % of the test digits are right")
