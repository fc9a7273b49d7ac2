"""The contract of all methods, so that one training loop serves all of them.

A method is a `torch.optim.Optimizer` over the binary parameters of a model.

    with optimizer.sampled_params(train=True):    # the model holds the training weights
        loss(model(x), y).backward()
    optimizer.step()                              # ... and here it holds the mode: exactly -1 and +1

A subclass defines its state (`_start`), how the training weights follow from it (`_relax`),
what the mode is (`_harden`) and how a gradient updates the state (`_update`). Everything else is
here: samples and their averaging, gradients, exceptions, saving and resuming, input checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesbinn import kernels, ranks
from bayesbinn.errors import InvalidInput, InvalidUse
from bayesbinn.methods import adoption, saving
from bayesbinn.methods import gradients as checks
from bayesbinn.methods.members import Counters, Group, Members, Sample, Samples, State
from bayesbinn.posterior import BernoulliPosterior

__all__ = ["BinaryOptimizer", "Group", "Members", "Sample", "State", "mean_gradients"]


class BinaryOptimizer(torch.optim.Optimizer):
    """Base class of the methods. See the module's docstring for the contract."""

    name: ClassVar[str]
    """The method's name on the command line and in files."""
    binary: ClassVar[bool] = True
    """Whether the model's weights are -1 and +1 outside `sampled_params`; if not, there is no posterior."""
    relaxes: ClassVar[bool] = True
    """Whether the training weights differ from the mode, so that samples must be written and the mode restored."""
    consolidated: ClassVar[tuple[str, ...]] = ()
    """Names of the state that `consolidate` adds: it has the parameter's shape, and a saved state may lack it."""

    # torch.amp.GradScaler passes its scale and `found_inf` to `step` instead of skipping it.
    _step_supports_amp_scaling = True

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
            total += _present(parameter.grad)

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

    # ---- samples ---------------------------------------------------------------------------

    @contextmanager
    def sampled_params(self, train: bool = True) -> Iterator[None]:
        """Put a sample of q(w) into the model for the length of a ``with`` block.

        ``train=True``: the relaxed sample that the method trains with. Entering clears the
        gradients. Several blocks before one `step()` are Monte-Carlo samples and are averaged;
        several ``backward()`` calls in one block add up.

        ``train=False``: a hard ±1 sample from a separate noise stream, so that evaluation never
        changes training.

        The mode is restored afterwards, even if the block raises.
        """
        if self._samples.inside is not None:
            raise InvalidUse(f"sampled_params(train={train}) inside another sampled_params block; leave that one first")
        entered: list[tuple[Members, Sample | None]] = []
        active = list(self._active())
        before = [members.versions() for members in active]
        if train:
            self._fold_pending()
            draw = self._counters.draws
            self._clear_gradients()
        else:
            draw = self._counters.evaluation_draws
            self._counters.evaluation_draws += 1
        self._samples.inside = "train" if train else "evaluation"
        try:
            samples: list[Sample] = []
            for members in active:
                if not train:
                    entered.append((members, None))
                    self._draw_hard(members, draw)
                elif self.relaxes:
                    entered.append((members, None))  # in case it fails halfway
                    samples.append(self._relax(members, draw))
                    entered[-1] = members, samples[-1]
                else:
                    samples.append(Sample(members.parameters, draw))
            with self._intercepted(draw) if train else nullcontext():
                yield
            if train:
                self._counters.draws += 1
                self._samples.count += 1
                self._samples.pending = samples
        except BaseException:
            if train:
                self._clear_gradients()
            raise
        finally:
            self._samples.inside = None
            if not entered and before != [members.versions() for members in active]:
                # The weights were the mode, and the block wrote to them.
                entered = [(members, None) for members in active]
            self._restore(entered)
            # A graph recorded with the sample must not be used after the block. Writing the mode tells
            # autograd so; without a write, we have to.
            if not entered:
                torch.autograd.graph.increment_version([p for members in active for p in members.parameters])

    def _restore(self, entered: list[tuple[Members, Sample | None]]) -> None:
        """Restore the mode in every group, even if one of them fails."""
        failure: BaseException | None = None
        for members, sample in entered:
            try:
                self._harden(members, sample)
            except BaseException as error:
                failure = error
                self._harden(members)
        if failure is not None:
            self._samples.clear()
            raise failure

    def _intercepted(self, draw: int) -> AbstractContextManager[Any]:
        """A hook for methods that change the operations, not the weights (LR-net)."""
        return nullcontext()

    def _clear_gradients(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; outside a training block, also discard the samples not yet stepped."""
        super().zero_grad(set_to_none)
        if self._samples.inside != "train":
            self._samples.clear()

    @torch.no_grad()
    def _fold_pending(self) -> None:
        """Move the last sample's gradients from ``p.grad`` into the totals."""
        if self._samples.pending is None:
            return
        with self._clearing_samples():
            self._fold(self._samples.pending)

    def _fold(self, pending: list[Sample]) -> None:
        self._samples.pending = None
        for members, sample in self._with_gradient(pending):
            for parameter, name in zip(members.parameters, members.names, strict=True):
                checks.refuse_unusable(name, _present(parameter.grad))
                if parameter not in self._samples.totals:
                    self._samples.totals[parameter] = torch.zeros(
                        parameter.shape, dtype=torch.float32, device=parameter.device
                    )
            self._accumulate(members, [self._samples.totals[p] for p in members.parameters], sample)

    def _with_gradient(self, pending: list[Sample]) -> Iterator[tuple[Members, Sample]]:
        """The members with a gradient of the pending sample; a parameter added or unfrozen since then has none.

        A group added since then has no sample.
        """
        for group, sample in zip(self.param_groups, pending, strict=False):
            moved = [p for p in sample.parameters if p.grad is not None and p.requires_grad]
            if moved:
                yield self._members(group, moved), sample

    # ---- stepping --------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the state from the samples drawn since the last step; the model then holds the new mode.

        With a closure (which computes the loss, calls ``backward()`` and returns the loss), draw
        `mc_samples` samples first and return the mean loss.
        """
        if self._samples.inside is not None:
            raise InvalidUse("step() inside a sampled_params block; call it after the block")
        loss = None if closure is None else self._sample_closure(closure)
        if self._samples.count == 0:
            raise InvalidUse(
                f"{type(self).__name__}.step() without a sample: compute loss and backward() inside "
                "`with optimizer.sampled_params(train=True):`, or pass a closure"
            )
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            self._samples.clear()
            return loss
        self._check_scaler_saw_all_samples(found_inf)
        try:
            self._move()
        except Exception:
            self._forget_scaler()
            raise
        finally:
            self._samples.clear()
        return loss

    def _move(self) -> None:
        """Update the state from the collected samples. All gradients are checked before anything changes."""
        pending, samples = self._samples.pending, self._samples.count
        if samples > 1 or self._reduces_itself():
            self._fold_pending()
            self._average_over_ranks()
            pending = None
        batches = list(self._ready(pending))
        number = self._counters.steps + 1
        limits = [self._gradient_limit(batch.members, batch.sample) for batch in batches]
        is_risky = checks.refuse_nonfinite(batches, limits, number)
        with checks.taken_back_on_overflow(batches, number) if is_risky else nullcontext():
            for members, gradients, sample in batches:
                for state in members.states:
                    state["step"] += 1
                self._update(members, gradients, sample, samples)
        self._harden_the_rest(batches)
        self._counters.steps = number

    def _harden_the_rest(self, batches: list[checks.Batch]) -> None:
        """A step writes every weight that it trains, so that ``p.data.mul_(...)`` does not survive it.

        This writes those without a gradient. A frozen parameter is left unchanged.
        """
        if sum(len(batch.members.parameters) for batch in batches) == len(self._names):
            return
        moved = {id(parameter) for batch in batches for parameter in batch.members.parameters}
        for group in self.param_groups:
            rest = [p for p in group["params"] if p.requires_grad and id(p) not in moved]
            if rest:
                self._harden(self._members(group, rest))

    def _sample_closure(self, closure: Callable[[], Any]) -> Any:
        if self._samples.count:
            # Frameworks that always pass a closure pass one that does nothing and returns None here.
            with torch.enable_grad(), self._clearing_samples():
                if closure() is not None:
                    raise InvalidUse("step(closure) after sampled_params blocks: use one or the other")
            return None
        losses = []
        with self._clearing_samples():
            for _ in range(self._mc_samples):
                with torch.enable_grad(), self.sampled_params(train=True):
                    loss = closure()
                losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        return sum(losses[1:], start=losses[0]) / len(losses) if losses[0] is not None else None

    @contextmanager
    def _clearing_samples(self) -> Iterator[None]:
        """Discard the samples if the block fails, so that no partial step remains."""
        try:
            yield
        except BaseException:
            self._samples.clear()
            raise

    def _ready(self, pending: list[Sample] | None) -> Iterator[checks.Batch]:
        """What to update: parameters with a gradient, or with a total if samples were summed."""
        scale = getattr(self, "grad_scale", None)
        for whole, sample in self._with_total() if pending is None else self._with_gradient(pending):
            for members in whole.by_step():
                gradients = [
                    self._samples.totals[p] if sample is None else _present(p.grad) for p in members.parameters
                ]
                for name, gradient in zip(members.names, gradients, strict=True):
                    checks.refuse_unusable(name, gradient)
                # A value that is finite in float64 may not be in float32, the dtype of the state.
                gradients = [g.float() if g.dtype is torch.float64 else g for g in gradients]
                if scale is not None:
                    gradients = [g.to(torch.float32) / scale.to(g.device) for g in gradients]
                yield checks.Batch(members, gradients, sample)

    def _with_total(self) -> Iterator[tuple[Members, None]]:
        for group in self.param_groups:
            moved = [p for p in group["params"] if p in self._samples.totals and p.requires_grad]
            if moved:
                yield self._members(group, moved), None

    def _check_scaler_saw_all_samples(self, found_inf: Tensor | None) -> None:
        if found_inf is not None and self._samples.count > 1:
            self._samples.clear()
            self._forget_scaler()
            raise InvalidUse(
                "GradScaler only sees the gradients of the last sampled_params block; draw one sample per step "
                "with it, or use bfloat16, which needs no scaler"
            )

    def _forget_scaler(self) -> None:
        """Remove what GradScaler set. It does so itself, but not after an error; the next step would divide by it."""
        self.__dict__.pop("grad_scale", None)
        self.__dict__.pop("found_inf", None)

    # ---- data parallel ---------------------------------------------------------------------

    def _reduces_itself(self) -> bool:
        return self._independent_noise and ranks.world() > 1

    def _average_over_ranks(self) -> None:
        """With independent noise on every rank, average s⊙g, not g."""
        if not self._reduces_itself():
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    total = self._samples.totals.setdefault(
                        parameter, torch.zeros(parameter.shape, device=parameter.device)
                    )
                    ranks.average(total)

    # ---- results and files -----------------------------------------------------------------

    def posterior(self) -> BernoulliPosterior:
        """A frozen snapshot of q(w)."""
        return BernoulliPosterior(
            {
                name: self._natural(parameter, self.state[parameter], group)
                for group in self.param_groups
                for parameter, name in zip(
                    group["params"], self._members(group, list(group["params"])).names, strict=True
                )
            }
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step needs, as tensors and plain values."""
        return {**super().state_dict(), saving.KEY: saving.header(self.name, self._counters)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume bit for bit; the model then holds the mode. Rejects the state of another method."""
        if self._samples.inside is not None:
            raise InvalidUse("load_state_dict inside a sampled_params block; call it after the block")
        counters = saving.counters_of(state_dict, self.name, type(self).__name__)
        shapes = {parameter: saving.shapes_of(self.state[parameter]) for parameter in self._names}
        saved = saving.matched(state_dict, self.param_groups, self._names, shapes, self.consolidated)
        settings = dict(self.defaults)
        super().load_state_dict(state_dict)
        self.defaults = settings  # without the flag that torch adds on loading
        for group in self.param_groups:
            for key, default in self.defaults.items():
                group.setdefault(key, default)  # a setting added after the state was saved
        for parameter, state in saved.items():
            self.state[parameter] = saving.kept(state, parameter.device)
        self._counters = counters
        self._samples.clear()
        self._gathered.clear()
        for group in self.param_groups:
            self._harden(self._members(group, list(group["params"])))

    def __getstate__(self) -> dict[str, Any]:
        torchs = ("_optimizer_", "_zero_grad", "_warned")
        own = {k: v for k, v in self.__dict__.items() if k.startswith("_") and not k.startswith(torchs)}
        return {**super().__getstate__(), **own, "_samples": Samples(), "_gathered": {}}


def _present(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient


def mean_gradients(gradients: list[Tensor], samples: int) -> list[Tensor]:
    """Turn totals over several samples into means; the gradient of one sample already is one."""
    return gradients if samples == 1 else [gradient / samples for gradient in gradients]
