"""Lightning: a module with a training step, and a Trainer."""

import logging

import lightning
import torch
from torch import nn, optim, utils

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitAutoEncoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 16))

    def training_step(self, batch, batch_idx):
        x = batch.view(batch.size(0), -1)
        x_hat = self.decoder(self.encoder(x))
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        print(batch_idx, loss.item())
        return loss

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=1e-3)


lightning.seed_everything(0, verbose=False)
autoencoder = LitAutoEncoder()
loader = utils.data.DataLoader(torch.randn(16, 4, 4), batch_size=4)
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(autoencoder, loader)
print(autoencoder.encoder[0].weight.sum().item())
