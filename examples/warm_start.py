"""Binarize a trained float network, then train it with BayesBiNN to recover the lost accuracy."""

import torch
from torch import nn

import bayesbinn as bb
from bayesbinn.data import load_digits
from bayesbinn.train.loop import fit

torch.manual_seed(0)
data = load_digits()
model = nn.Sequential(
    nn.Linear(64, 256, bias=False), nn.BatchNorm1d(256, affine=False), nn.ReLU(),
    nn.Linear(256, 10, bias=False), nn.BatchNorm1d(10, affine=False),
)  # fmt: skip


def test_accuracy() -> float:
    prediction = bb.predict(model, None, data.test_inputs)
    return 100 * bb.metrics.accuracy(prediction.probabilities, data.test_targets)


binary, _ = bb.split_parameters(model)
fit(model, bb.FloatAdam(binary), data.train_inputs, data.train_targets, epochs=10, batch_size=50)
before = test_accuracy()

optimizer = bb.BayesBiNN(binary, lr=1e-3, train_set_size=1437, temperature=1e-10, init="sign")
binarized = test_accuracy()  # the signs of the float weights, with the float network's BatchNorm statistics

fit(model, optimizer, data.train_inputs, data.train_targets, epochs=10, batch_size=50)
after = test_accuracy()
print(f"float {before:.1f} %, its signs {binarized:.1f} %, after 10 epochs of BayesBiNN {after:.1f} %")
