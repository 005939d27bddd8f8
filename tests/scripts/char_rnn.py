"""A character model: an LSTM whose state is detached between batches, clipped, by SGD."""

import torch
from torch import nn

torch.manual_seed(0)
text = "the quick brown fox jumps over the lazy dog. " * 4
chars = sorted(set(text))
data = torch.tensor([chars.index(char) for char in text])


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=0.2)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output))
        return decoded.view(-1, decoded.size(-1)), hidden


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


model = RNNModel(len(chars), 8, 12, 2)
criterion = nn.CrossEntropyLoss()
batches = data[: len(data) // 4 * 4].view(4, -1).t().contiguous()
hidden = torch.zeros(2, 4, 12), torch.zeros(2, 4, 12)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
for i in range(0, len(batches) - 8, 8):
    source, target = batches[i : i + 8], batches[i + 1 : i + 9].reshape(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(source, hidden)
    loss = criterion(output, target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(i, loss.item())
model.eval()
with torch.no_grad():
    symbol = torch.zeros(1, 1, dtype=torch.long)
    state = torch.zeros(2, 1, 12), torch.zeros(2, 1, 12)
    for _ in range(8):
        output, state = model(symbol, state)
        symbol = torch.multinomial(output.exp(), 1)
        print(chars[symbol.item()], end="")
print()
