"""Lightning's Trainer with DDP: fit, validate, log over ranks, checkpoint, go on from it, predict."""

import json
import warnings

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], _index: int) -> None:
        scores = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(scores, batch[1]), sync_dist=True)
        self.log("val_accuracy", (scores.argmax(1) == batch[1]).float().mean(), sync_dist=True)
        self.log("val_count", len(batch[1]), sync_dist=True, reduce_fx="sum")

    def predict_step(self, batch: list[Tensor], _index: int) -> Tensor:
        return self.net(batch[0]).argmax(1)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)}


def trainer(epochs: int, *callbacks: lightning.Callback) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs, callbacks=list(callbacks), logger=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, num_sanity_val_steps=1,
    )  # fmt: skip


def main() -> None:
    lightning.seed_everything(0)
    inputs = torch.randn(192, 8)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long())
    train, test = DataLoader(data, 16, shuffle=True), DataLoader(data, 16)
    saves = ModelCheckpoint("checkpoints", monitor="val_loss", save_last=True)
    first = trainer(2, saves, EarlyStopping("val_loss", patience=3))
    model = Classifier()
    first.fit(model, train, test)
    assert (first.world_size, dist.get_world_size(), first.global_step) == (2, 2, 12)
    before = first.callback_metrics["val_loss"].item()
    assert first.callback_metrics["val_count"] == 192
    second = trainer(4)
    second.fit(model, train, test, ckpt_path="checkpoints/last.ckpt")
    (found,) = second.validate(model, test, verbose=False)
    assert found["val_loss"] < before
    assert sum(map(len, second.predict(model, test))) == 96
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everyone = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(everyone, weights)
    assert torch.equal(*everyone)
    if first.is_global_zero:
        print("peer", json.dumps({"losses": [before, found["val_loss"]]}))


if __name__ == "__main__":
    main()
