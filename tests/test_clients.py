"""Real clients: each trains as its documentation shows, and the page lists the graph."""

import pytest
import tensorboardX
import torch
from browser import TensorBoard
from client_models import Net, lit_net, loss_of, points, trainer_of_lightning
from client_models import trainer_of_transformers as trainer_of
from served import info, names

import tbscope

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.ones(1, 3)


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss


def lightnings_logger(folder):
    with tbscope.installed():
        trainer_of_lightning(folder, log_graph=True).fit(lit_net(), points())


def lightnings_callback(folder):
    from tbscope.integrations.lightning import GraphCallback

    trainer_of_lightning(folder, [GraphCallback()]).fit(lit_net(), points())


def the_other_lightnings_callback(folder):
    import pytorch_lightning
    from pytorch_lightning.loggers import TensorBoardLogger

    from tbscope.integrations.lightning import GraphCallback

    class Lit(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, batch_idx):
            return loss_of(self.net, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    pytorch_lightning.Trainer(
        logger=TensorBoardLogger(str(folder)),
        max_epochs=1,
        accelerator="cpu",
        callbacks=[GraphCallback()],
        enable_progress_bar=False,
        enable_checkpointing=False,
    ).fit(Lit(), points())


def transformers_callback(folder):
    from tbscope.integrations.transformers import GraphCallback

    trainer_of(folder, [GraphCallback()]).train()


def accelerate_tracker(folder):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, log_with="tensorboard", project_dir=str(folder))
    accelerator.init_trackers("run")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, batches = accelerator.prepare(model, optimizer, points())
    with tbscope.installed():
        accelerator.get_tracker("tensorboard").writer.add_graph(model, X)
    for batch in batches:
        accelerator.backward(loss_of(model, batch))
        optimizer.step()
    accelerator.end_training()


def ignite_logger(folder):
    from ignite.engine import Engine, Events
    from ignite.handlers import TensorboardLogger

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = Engine(lambda engine, batch: step(model, optimizer, batch).item())
    with tbscope.installed(), TensorboardLogger(log_dir=str(folder)) as logger:
        trainer.add_event_handler(Events.STARTED, lambda: logger.writer.add_graph(model, X))
        logger.attach_output_handler(
            trainer, Events.ITERATION_COMPLETED, tag="train", output_transform=lambda loss: loss
        )
        trainer.run(points())


def a_loop_with_tensorboardx(folder):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tbscope.installed(), tensorboardX.SummaryWriter(str(folder)) as writer:
        writer.add_graph(model, X)
        for number, batch in enumerate(points()):
            writer.add_scalar("loss", step(model, optimizer, batch).item(), number)


MODEL = {"fc", "fc/weight", "head"}
STEP = {"batch.x", "Lit/net/fc", "Lit/mse_loss", "optimizer/SGD/Lit/net/fc/weight/add_"}
BERT = "BertForSequenceClassification"

# Some of what each client draws.
CLIENTS = {
    lightnings_logger: {"net/fc", "net/fc/weight", "net/head"},
    lightnings_callback: STEP,
    the_other_lightnings_callback: STEP,
    transformers_callback: {
        f"{BERT}/classifier",
        f"optimizer/AdamW/group_0/{BERT}/classifier/weight/zeros_like",
    },
    accelerate_tracker: MODEL,
    ignite_logger: MODEL,
    a_loop_with_tensorboardx: MODEL,
}


@pytest.mark.parametrize("train", CLIENTS, ids=lambda train: train.__name__)
def test_who_trains_with_it_sees_the_graph_on_the_page(train, tmp_path):
    train(tmp_path)
    with TensorBoard(tmp_path) as server:
        (run,) = [run for run, facts in info(server).items() if facts["run_graph"]]
        drawn = set(names(server, run))
    assert CLIENTS[train] <= drawn, sorted(drawn)
