"""The contract of all methods, so that one training loop serves all of them.

A method is a `torch.optim.Optimizer` over the binary parameters of a model.

    with optimizer.sampled_params(train=True):    # the model holds the training weights
        loss(model(x), y).backward()
    optimizer.step()                              # ... and here it holds the mode: exactly -1 and +1

A subclass defines its state (`_start`), how the training weights follow from it (`_relax`),
what the mode is (`_harden`) and how a gradient updates the state (`_update`); `hooks` has their
defaults. Everything else is here: samples and their averaging, steps, saving and resuming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bayesbinn import ranks
from bayesbinn.errors import InvalidUse
from bayesbinn.methods import gradients as checks
from bayesbinn.methods import saving
from bayesbinn.methods.hooks import MethodHooks
from bayesbinn.methods.members import Group, Members, Sample, Samples, State
from bayesbinn.posterior import BernoulliPosterior

__all__ = ["BinaryOptimizer", "Group", "Members", "Sample", "State", "mean_gradients"]


class BinaryOptimizer(MethodHooks):
    """Base class of the methods. See the module's docstring for the contract."""

    # torch.amp.GradScaler passes its scale and `found_inf` to `step` instead of skipping it.
    _step_supports_amp_scaling = True

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
                checks.refuse_unusable(name, checks.present(parameter.grad))
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
                    self._samples.totals[p] if sample is None else checks.present(p.grad) for p in members.parameters
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


def mean_gradients(gradients: list[Tensor], samples: int) -> list[Tensor]:
    """Turn totals over several samples into means; the gradient of one sample already is one."""
    return gradients if samples == 1 else [gradient / samples for gradient in gradients]
