"""Ignite: the logger's writer draws the model before the first epoch."""

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import TensorboardLogger

import tbscope

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.rand(4, 8), torch.rand(4, 1)) for _ in range(8)]
trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)

with TensorboardLogger(log_dir="runs/ignite") as logger:

    @trainer.on(Events.STARTED)
    def draw():
        graph = tbscope.add_graph(logger, model, data[0][0], on_error="warn")
        print(graph)

    logger.attach_output_handler(
        trainer,
        Events.ITERATION_COMPLETED,
        tag="train",
        output_transform=lambda loss: {"loss": loss},
    )
    trainer.run(data, max_epochs=2)
