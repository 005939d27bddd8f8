"""Small models and data for those who train with other libraries."""

import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

POINTS = [{"x": torch.full((3,), float(i)), "y": torch.ones(2)} for i in range(4)]
TEXTS = [{"input_ids": [1, 2, 3, 4 + i], "labels": i % 2} for i in range(8)]


class Net(nn.Module):
    """Two layers and a loss."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.fc(x)))


def points():
    return DataLoader(POINTS, batch_size=2)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])


def bert():
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def trainer_of_transformers(folder, callbacks, *, model=None, kind=transformers.Trainer, **options):
    """Give a Trainer that makes two steps, and logs to TensorBoard unless told otherwise."""
    settings = {
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "report_to": "tensorboard",
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        **options,
    }
    return kind(
        model or bert(),
        transformers.TrainingArguments(str(folder), **settings),
        train_dataset=TEXTS,
        callbacks=callbacks,
    )


def trainer_of_lightning(folder, callbacks=(), *, log_graph=False, **options):
    """Give a Trainer of Lightning that logs to TensorBoard unless told otherwise."""
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers import TensorBoardLogger

    settings = {
        "logger": TensorBoardLogger(str(folder), log_graph=log_graph),
        "max_epochs": 1,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        **options,
    }
    return lightning.Trainer(callbacks=list(callbacks), **settings)


def lit_net():
    """Give a module of Lightning, whose step calls a part of it with a part of a dict."""
    import lightning.pytorch as lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()
            self.example_input_array = torch.ones(1, 3)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            loss = loss_of(self.net, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    torch.manual_seed(0)
    return Lit()
