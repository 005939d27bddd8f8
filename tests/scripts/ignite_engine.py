"""An engine of Ignite, with an evaluator."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
criterion = nn.CrossEntropyLoss()
batches = [(torch.randn(4, 1, 4, 4), torch.randint(2, (4,))) for _ in range(4)]
trainer = create_supervised_trainer(model, optimizer, criterion)
evaluator = create_supervised_evaluator(model, metrics={"loss": Loss(criterion)})


@trainer.on(Events.ITERATION_COMPLETED)
def log_training_loss(engine):
    print(engine.state.iteration, engine.state.output)


@trainer.on(Events.EPOCH_COMPLETED)
def log_validation(engine):
    evaluator.run(batches)
    print("validation", evaluator.state.metrics["loss"])


trainer.run(batches, max_epochs=2)
