"""Gradient clipping, micro-batches and bfloat16 autocast work as with any optimizer."""

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
binary, _ = bb.split_parameters(model)
optimizer = bb.BayesBiNN(binary, lr=1e-3, train_set_size=1437, temperature=1e-10)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
largest = 0.0
for _ in range(20):
    for rows in torch.randperm(1437).split(100):
        micro_batches = rows.split(50)
        with optimizer.sampled_params(train=True):  # one sample of the weights for all micro-batches
            for part in micro_batches:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(data.train_inputs[part]), data.train_targets[part])
                (loss / len(micro_batches)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)  # the raw gradients are still in p.grad
        largest = max(largest, float(norm))
        optimizer.step()
    scheduler.step()
prediction = bb.predict(model, optimizer.posterior(), data.test_inputs)
accuracy = bb.metrics.accuracy(prediction.probabilities, data.test_targets)
print(f"gradient norms up to {largest:.2f} clipped to 0.10; {100 * accuracy:.1f} % of the test digits are right")
