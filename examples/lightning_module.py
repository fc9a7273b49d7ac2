"""A PyTorch Lightning module with manual optimization."""

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayesbinn as bb
from bayesbinn.data import load_digits


class BinaryDigits(lightning.LightningModule):
    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.automatic_optimization = False  # the sampled weights must be in the model before forward runs
        self.epochs = epochs
        self.model = nn.Sequential(
            nn.Linear(64, 256, bias=False), nn.BatchNorm1d(256, affine=False), nn.ReLU(),
            nn.Linear(256, 10, bias=False), nn.BatchNorm1d(10, affine=False),
        )  # fmt: skip

    def configure_optimizers(self) -> dict[str, object]:
        binary, _ = bb.split_parameters(self.model)
        optimizer = bb.BayesBiNN(binary, lr=1e-3, train_set_size=1437, temperature=1e-10, seed=0)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        optimizer = self.optimizers()
        x, y = batch
        with optimizer.sampled_params(train=True):
            self.manual_backward(F.cross_entropy(self.model(x), y))
        optimizer.step()

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()


torch.manual_seed(0)
data = load_digits()
module = BinaryDigits(epochs=20)
trainer = lightning.Trainer(
    max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(module, DataLoader(TensorDataset(data.train_inputs, data.train_targets), batch_size=50, shuffle=True))
prediction = bb.predict(module.model, None, data.test_inputs)
accuracy = bb.metrics.accuracy(prediction.probabilities, data.test_targets)
print(f"{bb.check_binary(module):,} binary weights: {100 * accuracy:.1f} % of the test digits are right")
