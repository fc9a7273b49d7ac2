"""What a method defines, and the parameters it owns with their states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesbinn import kernels, ranks
from bayesbinn.errors import InvalidInput
from bayesbinn.methods import adoption
from bayesbinn.methods import gradients as checks
from bayesbinn.methods.lookup import looking_up
from bayesbinn.methods.members import Counters, Group, Members, Sample, Samples, State


class MethodHooks(torch.optim.Optimizer):
    """The base of `BinaryOptimizer`, which adds samples and steps to it."""

    name: ClassVar[str]
    """The method's name on the command line and in files."""
    binary: ClassVar[bool] = True
    """Whether the model's weights are -1 and +1 outside `sampled_params`; if not, there is no posterior."""
    relaxes: ClassVar[bool] = True
    """Whether the training weights differ from the mode, so that samples must be written and the mode restored."""
    consolidated: ClassVar[tuple[str, ...]] = ()
    """Names of the state that `consolidate` adds: it has the parameter's shape, and a saved state may lack it."""

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        mc_samples: int = 1,
        independent_noise: bool = False,
        seed: int | None = None,
    ) -> None:
        if mc_samples < 1:
            raise InvalidInput(f"mc_samples={mc_samples}: it must be 1 or more")
        if seed is None:
            seed = int(torch.randint(2**62, (1,)).item())
        self._counters = Counters(ranks.from_rank_zero(int(seed)))
        self._mc_samples = mc_samples
        self._independent_noise = independent_noise
        self._names: dict[Tensor, str] = {}
        self._samples = Samples()
        self._gathered: dict[int, Members] = {}
        super().__init__(adoption.listed(type(self).__name__, params), defaults)

    @property
    def mc_samples(self) -> int:
        """S: how many samples a step should average over."""
        return self._mc_samples

    @property
    def independent_noise(self) -> bool:
        """Whether every data-parallel rank draws its own noise; `step` then averages over the ranks."""
        return self._independent_noise

    # ---- what a method defines -------------------------------------------------------------

    def _check_settings(self, group: Group) -> None:
        """Reject settings that cannot work. Called for every group."""

    def _start(self, parameter: Tensor, name: str, group: Group) -> State:
        """The state of a new parameter; tensors in it are float32 and contiguous."""
        raise NotImplementedError

    def _relax(self, members: Members, draw: int) -> Sample:
        """Write the training weights of sample number `draw` into the parameters; return what `_update` needs."""
        raise NotImplementedError  # never called if `relaxes` is False

    def _harden(self, members: Members, sample: Sample | None = None) -> None:
        """Write the mode into the parameters, which hold `sample` if there is one."""

    def _draw_hard(self, members: Members, draw: int) -> None:
        """Write a ±1 sample for evaluation into the parameters. A point mass draws nothing."""

    def _accumulate(self, members: Members, totals: list[Tensor], sample: Sample) -> None:
        """Add one sample's contribution to `totals`: the gradient itself, unless a method scales it."""
        for total, parameter in zip(totals, members.parameters, strict=True):
            total += checks.present(parameter.grad)

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        """Update the state of members that share a step count, which already includes this step.

        `sample` is the sample behind the gradients; None: they are totals over `samples`.
        """
        raise NotImplementedError

    def _gradient_limit(self, members: Members, sample: Sample | None) -> float:
        """Gradients (or totals, if there is no single `sample`) up to this size cannot make the state overflow.

        It may be conservative: a step with a larger gradient is made, and undone if it did overflow.
        """
        return checks.SQUARABLE

    def _natural(self, parameter: Tensor, state: State, group: Group) -> Tensor:
        """λ = ½·log(p/(1 − p)) of a parameter."""
        raise NotImplementedError

    def _intercepted(self, draw: int) -> AbstractContextManager[Any]:
        """A hook for methods that change the operations, not the weights (LR-net). Here: how, not what they compute."""
        return looking_up(parameter for members in self._active() for parameter in members.parameters)

    def consolidate(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Between two tasks: protect what was learned so far. Methods without a memory do nothing.

        `batches` are (inputs, targets) of the last task, iterated only by methods that need them.
        """

    # ---- construction ----------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own settings; the error names any parameter that cannot be trained."""
        adoption.refuse_unknown_settings(type(self).__name__, param_group, self.defaults)
        param_group = {**param_group, "params": list(param_group["params"])}
        adoption.refuse_owned_twice(param_group["params"], self._names)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_settings(group)
            self._adopt(group)
        except Exception:
            self.param_groups.pop()
            self._gathered.clear()
            for parameter in group["params"]:
                self._names.pop(parameter, None)
                self.state.pop(parameter, None)
            raise

    def _adopt(self, group: Group) -> None:
        """Check, name and initialize the parameters of a new group, and write the mode into them."""
        self._names |= adoption.named(group, self._names)
        if self.binary:
            adoption.question_vectors(type(self).__name__, self._names, group["params"])
        for parameter in group["params"]:
            state = self._start(parameter, self._names[parameter], group)
            for key in sorted(state):
                if isinstance(state[key], Tensor):
                    ranks.broadcast(state[key])
            self.state[parameter] = {"step": 0, **state}
        self._harden(self._members(group, list(group["params"])))

    def _members(self, group: Group, parameters: list[Tensor]) -> Members:
        """Gather names and states; the state follows a parameter to another device.

        The members of a whole group are cached, because for a small network gathering them again
        takes longer than the kernels.
        """
        devices = [parameter.device for parameter in parameters]
        whole = len(parameters) == len(group["params"])
        known = self._gathered.get(id(group)) if whole else None
        if known is not None and known.group is group and known.devices == devices:
            return known
        states = [self.state[parameter] for parameter in parameters]
        for device, state in zip(devices, states, strict=True):
            for key, value in state.items():
                if isinstance(value, Tensor) and value.device != device:
                    state[key] = value.to(device)
        members = Members(group, parameters, [self._names[parameter] for parameter in parameters], states, devices)
        if whole:
            self._gathered[id(group)] = members
        return members

    def _active(self) -> Iterator[Members]:
        """The trained members of every group; a frozen parameter holds its mode and is not sampled."""
        for group in self.param_groups:
            yield self._members(group, [p for p in group["params"] if p.requires_grad])

    def _keys(self, members: Members, purpose: str) -> list[int]:
        if self._independent_noise and purpose == "train":
            purpose = f"train/{ranks.rank()}"
        return [kernels.noise_key(self._counters.seed, purpose, name) for name in members.names]
