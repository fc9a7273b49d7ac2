"""A straightforward version of the paper's rule: one flat vector, one allocating operation per symbol."""

from __future__ import annotations

import torch
from torch import nn


class Textbook:
    """BayesBiNN with β = 0.9 as stated in the paper and the authors' code; a baseline for comparison only."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, train_set_size: int, temperature: float) -> None:
        self.parameters, self.lr, self.n, self.tau = parameters, lr, train_set_size, temperature
        size = sum(p.numel() for p in parameters)
        self.natural = torch.where(torch.rand(size) < 0.5, -10.0, 10.0)
        self.mu = torch.tanh(self.natural)
        self.momentum = torch.zeros(size)
        self.beta, self.eps, self.k = 0.9, 1e-10, 0

    @torch.no_grad()
    def sample(self) -> None:
        u = torch.rand_like(self.natural)
        delta = 0.5 * torch.log(u / (1 - u))
        self.w = torch.tanh((self.natural + delta) / self.tau)
        nn.utils.vector_to_parameters(self.w, self.parameters)

    @torch.no_grad()
    def step(self) -> None:
        g = nn.utils.parameters_to_vector(p.grad for p in self.parameters)
        s = ((1 - self.w * self.w + self.eps) / self.tau) / (1 - self.mu * self.mu + self.eps)
        gradient = self.n * s * g
        self.k += 1
        self.momentum = self.beta * self.momentum + (1 - self.beta) * (gradient + self.natural)
        self.mu = torch.tanh(self.natural)
        self.natural = self.natural - self.lr * self.momentum / (1 - self.beta**self.k)
        nn.utils.vector_to_parameters(torch.where(self.mu > 0, 1.0, -1.0), self.parameters)
