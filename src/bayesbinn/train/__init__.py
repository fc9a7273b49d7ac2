"""The only training loop, and what makes it stoppable and resumable."""

from bayesbinn.train.loop import Epoch, Totals, fit, train_batches
from bayesbinn.train.schedules import cosine

__all__ = ["Epoch", "Totals", "cosine", "fit", "train_batches"]
