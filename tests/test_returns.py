"""Returns: modules of which only methods are called, asked again for work on their own results."""

from random import Random

import pytest
import torch
from torch import nn
from torch.nn.functional import embedding

import tbscope


class Book(nn.Module):
    """A codebook that is never called; with a layer, a method of it calls that."""

    def __init__(self, layer):
        super().__init__()
        self.entries = nn.Buffer(torch.rand(5, 4))
        self.layer = nn.Linear(4, 4) if layer else None

    def encode(self, x):
        return (x @ self.entries.t()).max(-1).indices

    def decode(self, codes):
        found = embedding(codes, self.entries)
        return found if self.layer is None else self.layer(found)


class Quantizer(nn.Module):
    """Codebooks of which each encodes what the ones before have left; never called, too."""

    def __init__(self, books, layer, listed):
        super().__init__()
        made = [Book(layer) for _ in range(books)]
        self.books = nn.ModuleList(made) if listed else made
        for at, book in enumerate([] if listed else made):
            setattr(self, f"book{at}", book)

    def encode(self, x):
        codes = []
        for book in self.books:
            codes.append(book.encode(x))
            x = x - book.decode(codes[-1])
        return torch.stack(codes)

    def decode(self, codes):
        return sum(book.decode(one) for book, one in zip(self.books, codes, strict=True))


class Codec(nn.Module):
    def __init__(self, books=3, *, layer=False, listed=True, outside=False):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.quantizer, self.outside = Quantizer(books, layer, listed), outside

    def forward(self, x):
        codes = self.quantizer.encode(self.first(x))
        if self.outside:
            codes = torch.stack([codes])[0]
        return self.last(self.quantizer.decode(codes))


class Once(Codec):
    """Decodes nothing after all has been encoded."""

    def forward(self, x):
        return self.last(self.quantizer.encode(self.first(x)).float().mean(0)[:, None].expand(2, 4))


def drawn(model, **options):
    return tbscope.to_graph_def(tbscope.trace(model, torch.rand(2, 4)), cards=False, **options)


def names(message):
    return {node.name for node in message.node if "Const" not in node.op}


def cycles(message):
    return [found.node for found in tbscope.lint(message) if found.rule == "box-cycle"]


@pytest.mark.parametrize("style", ["tf", "torch"])
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("books", [2, 3, 12])
def test_codebooks_that_decode_what_all_of_them_have_encoded_are_on_no_cycle(
    books, layer, listed, outside, style
):
    model = Codec(books, layer=layer, listed=listed, outside=outside)
    assert cycles(drawn(model, style=style)) == []


def test_the_first_work_of_each_codebook_stays_in_it_and_the_later_work_is_around_them():
    found = names(drawn(Codec()))
    assert {f"quantizer/books/{at}/embedding" for at in range(3)} <= found
    assert {"quantizer/embedding", "quantizer/embedding.2nd", "quantizer/embedding.3rd"} <= found


def test_a_layer_that_is_called_in_the_later_work_has_the_name_by_which_it_is_held():
    found = names(drawn(Codec(layer=True)))
    assert {"quantizer/books/1/layer", "quantizer/books.1.layer"} <= found


def test_all_stays_in_the_codebooks_that_are_asked_once():
    found = names(drawn(Once()))
    assert {name for name in found if "embedding" in name} == {
        f"quantizer/books/{at}/embedding" for at in range(3)
    }


def test_one_codebook_alone_keeps_its_later_work():
    message = drawn(Codec(1))
    assert "quantizer/books/0/embedding.2nd" in names(message)
    assert cycles(message) == []


class Parts(nn.Module):
    """Modules in which only methods work, called in any order on any of the results so far."""

    def __init__(self, random, times):
        super().__init__()
        self.parts = nn.ModuleList([Book(random.random() < 0.5) for _ in range(3)])
        self.order = [(random.randrange(3), random.random() < 0.3) for _ in range(times)]

    def work(self, x):
        for at, by_itself in self.order:
            x = self.parts[at].decode(self.parts[at].encode(x)) + (x.exp() if by_itself else 0)
        return x


class Around(nn.Module):
    def __init__(self, random, times):
        super().__init__()
        self.inner = Parts(random, times)

    def forward(self, x):
        return self.inner.work(x)


@pytest.mark.parametrize("seed", range(12))
def test_modules_whose_methods_are_called_in_any_order_are_on_no_cycle(seed):
    random = Random(seed)
    model = Around(random, random.randint(2, 9))
    assert cycles(drawn(model)) == []
