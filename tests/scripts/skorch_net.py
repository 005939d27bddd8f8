"""A classifier of skorch, as scikit-learn's."""

import numpy
import torch
from skorch import NeuralNetClassifier
from torch import nn

torch.manual_seed(0)
numpy.random.seed(0)


class MyModule(nn.Module):
    def __init__(self, num_units=10, nonlin=nn.ReLU()):
        super().__init__()
        self.dense0 = nn.Linear(20, num_units)
        self.nonlin = nonlin
        self.dropout = nn.Dropout(0.5)
        self.dense1 = nn.Linear(num_units, num_units)
        self.output = nn.Linear(num_units, 2)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, X):
        X = self.dropout(self.nonlin(self.dense0(X)))
        X = self.nonlin(self.dense1(X))
        return self.softmax(self.output(X))


X = numpy.random.randn(64, 20).astype("float32")
y = (X.sum(1) > 0).astype("int64")
net = NeuralNetClassifier(MyModule, max_epochs=2, lr=0.1, batch_size=16, verbose=0)
net.fit(X, y)
print(net.history[:, ("train_loss", "valid_loss")], net.predict_proba(X)[:3])
