"""Draws the pictures of README and docs/gallery.md: `python -m tests.pictures`.

`python -m tests.pictures first-look profile tutorial forms tab ranks bert` draws only README's,
those of five pages, and those of one model. Everything but what docs/forms.md shows is drawn in
TensorBoard; all of it in a headless browser, and only made small afterwards.
"""

import contextlib
import io
import re
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import torch
from PIL import Image, ImageChops
from torch.utils.tensorboard import SummaryWriter
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetModel,
)

import tbscope
from tbscope.formats.json import graph_from_json
from tests.browser import Browser, GraphPage, TensorBoard
from tests.gallery_models import SIGHTS, Sight
from tests.gallery_own import diffusion

_DOCS = Path(__file__).parents[1] / "docs"
_PICTURES = _DOCS / "img" / "gallery"

# A quarter of the page's width is its side panel; its head is a bar, and the bar's shadow.
_SIZE = (1200, 1000)
_LARGE = (2600, 2400)
_HEAD = 72
_MARGIN = 10
_WIDEST = 900
_PARTS = ("", "-inside")

_DARK = "/?darkMode=true&"
_WAYS = (
    ("`add_graph(model, inputs)`", True, {}),
    ("`add_graph(model, inputs)` under `torch.no_grad()`", False, {}),
    ("`add_graph(model, inputs, use_strict_trace=False)`", True, {"use_strict_trace": False}),
)
_INTRODUCTION = """\
# Gallery

Well-known models in TensorBoard's page, as tbscope draws them, in its light and its dark theme,
and as `torch.utils.tensorboard` does: of each the first look, without a click, then one block,
opened."""

_POSTSCRIPT = """
## The models

The first twelve models are those of Hugging Face's transformers and of torch, from small configs;
the others are written by hand, one of each family
([tests/gallery_own.py](../tests/gallery_own.py)). All have random weights, and run in evaluation
mode. Inputs and outputs whose names the page would cut are in boxes of their own, without a colour
([page.md](page.md#the-first-look)).

torch's `add_graph` is tried as one calls it, under `torch.no_grad()`, and with
`use_strict_trace=False`. Where it raises in all three ways, its last error is in place of its
picture.

In a clone, `python -m tests.pictures` draws all pictures anew and writes this page."""


def main() -> None:
    """Draw the pictures anew that are named, or all of them and the gallery's text."""
    warnings.simplefilter("ignore")
    names = sys.argv[1:]
    chosen = [sight for sight in SIGHTS if not names or sight.name in names]
    if chosen:
        said = draw_gallery(chosen)
    if not names:
        (_DOCS / "gallery.md").write_text("\n".join(gallery_lines(said)) + "\n")
    if not names or "first-look" in names:
        draw_first_look()
    if not names or "profile" in names:
        draw_profile()
    if not names or "tutorial" in names:
        draw_tutorial()
    if not names or "forms" in names:
        draw_forms()
    if not names or "tab" in names:
        draw_tab()
    if not names or "ranks" in names:
        draw_ranks()


def draw_gallery(chosen: list[Sight]) -> dict[str, "Attempt"]:
    """Draw the pictures of some models; tell of each how torch did."""
    _PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        logdir = Path(folder)
        said = {sight.name: draw(sight, logdir) for sight in chosen}
        with TensorBoard(logdir) as server, Browser() as browser:
            for suffix, theme in (("", ""), ("-dark", _DARK)):
                small = browser.open(server.url + theme, size=_SIZE, minimap=True)
                large = browser.open(server.url + theme, size=_LARGE, minimap=True)
                for sight in chosen:
                    take_pictures(small, large, sight, sight.name, suffix)
                    if not suffix and said[sight.name].drawn:
                        take_pictures(small, large, sight, f"{sight.name}-torch", "")
    return said


class Attempt(NamedTuple):
    """What came of torch's own `add_graph`.

    Attributes:
        drawn: Whether it drew the model.
        text: By which way it did, or the error that the last way ended in.
    """

    drawn: bool
    text: str


def draw(sight: Sight, logdir: Path) -> Attempt:
    """Write the graph of one model, drawn by tbscope and by torch, as two runs."""
    torch.manual_seed(0)
    model, given, by_position = sight.make()
    model.eval()
    with tbscope.SummaryWriter(logdir / sight.name) as writer:
        writer.add_graph(model, given)
    with SummaryWriter(logdir / f"{sight.name}-torch") as writer:
        for text, grad, options in _WAYS:
            try:
                with contextlib.redirect_stdout(io.StringIO()), torch.set_grad_enabled(grad):
                    writer.add_graph(model, by_position, **options)
            except Exception as raised:  # noqa: BLE001 - Whatever torch raises, the gallery quotes.
                error = f"{type(raised).__name__}: {raised}"
            else:
                return Attempt(True, text)
    return Attempt(False, _shorten(error))


def _shorten(error: str) -> str:
    """Give an error as one line, what it prints of tensors left out."""
    error = re.sub(r"\(.*\)\s*:", "(...): ", error, count=1, flags=re.DOTALL)
    return " ".join(error.split())


def take_pictures(small: GraphPage, large: GraphPage, sight: Sight, run: str, suffix: str) -> None:
    """Take the first look at a run, and the picture of its opened box."""
    small.show(run)
    first = _PICTURES / f"{run}{suffix}.png"
    small.take_picture(first)
    _keep(first, (_SIZE[0] // 4, _HEAD, *_SIZE))
    errors = list(small.errors)
    large.show(run)
    path = list(_path_to(large, sight.opened))
    opened = _PICTURES / f"{run}-inside{suffix}.png"
    large.take_picture(opened)
    _keep(opened, _place(large, path[-1]))
    errors += large.errors
    if errors:
        raise SystemExit(f"{run}: the page reported: {errors}")


def _path_to(page: GraphPage, box: str) -> Iterator[str]:
    """Open a box with all that hold it; give their names, which torch writes its own way.

    torch's drawing has a box around everything, and of a list of modules a box that holds
    only what is left over: its modules stand beside it.
    """
    parts, current = box.split("/"), ""
    if parts[0] not in page.boxes:
        (current,) = page.boxes - {"input", "output"}
        page.expand(current)
        yield current
    for part in parts:
        form = re.compile(rf"{re.escape(part)}|(?!ModuleList)\w+\[{re.escape(part)}\]")
        start = f"{current}/" if current else ""
        below = (name for name in page.boxes if name.startswith(start))
        found = next((name for name in below if form.fullmatch(name[len(start) :])), None)
        if found is not None:
            page.expand(found)
            current = found
            yield current


def _place(page: GraphPage, name: str) -> tuple[int, int, int, int]:
    """Tell where on the page a box is drawn: left, top, right, bottom."""
    shape = page._page.locator(f'g.node[data-name="{name}"]').first.bounding_box()
    left, top = int(shape["x"]), int(shape["y"])
    return left, top, left + int(shape["width"]) + 1, top + int(shape["height"]) + 1


def _keep(path: Path, place: tuple[int, int, int, int]) -> None:
    """Keep one place of a picture, without the empty space around, in few colours."""
    picture = Image.open(path).convert("RGB").crop(place)
    width, height = picture.size
    ground = Image.new("RGB", picture.size, picture.getpixel((width - 1, height - 1)))
    left, top, right, bottom = ImageChops.difference(picture, ground).getbbox()
    picture = picture.crop(
        (
            max(0, left - _MARGIN),
            max(0, top - _MARGIN),
            min(width, right + _MARGIN),
            min(height, bottom + _MARGIN),
        )
    )
    if picture.width > _WIDEST:
        picture.thumbnail((_WIDEST, 10 * _WIDEST), Image.Resampling.LANCZOS)
    picture.quantize(64).save(path, optimize=True)


def gallery_lines(said: dict[str, Attempt]) -> Iterator[str]:
    """Give docs/gallery.md, line by line."""
    yield _INTRODUCTION
    for sight in SIGHTS:
        attempt = said[sight.name]
        yield f"\n## {sight.title}\n\n{sight.sees} `{sight.opened}` opened: {sight.inside}\n"
        yield "| tbscope | torch.utils.tensorboard |"
        yield "| --- | --- |"
        for part, words in (("", attempt.text), ("-inside", "")):
            cells = [f"![{sight.title}](img/gallery/{sight.name}{part}.png)"]
            if attempt.drawn:
                cells.append(f"![{sight.title}](img/gallery/{sight.name}-torch{part}.png)")
                cells[-1] += f"<br>{words}" if words else ""
            else:
                cells.append(words)
            yield f"| {' | '.join(cells)} |"
        dark = [f"![{sight.title}](img/gallery/{sight.name}{part}-dark.png)" for part in _PARTS]
        yield f"\n| tbscope, dark | opened |\n| --- | --- |\n| {' | '.join(dark)} |"
    yield _POSTSCRIPT


def draw_first_look() -> None:
    """Draw README's pictures: the first look at a detector, and torch's graph of it."""
    (sight,) = (sight for sight in SIGHTS if sight.name == "detector")
    with tempfile.TemporaryDirectory() as folder:
        draw(sight, Path(folder))
        with TensorBoard(Path(folder)) as server, Browser() as browser:
            page = browser.open(server.url, size=_SIZE, minimap=True)
            for ending in ("", "-torch"):
                page.show(f"{sight.name}{ending}")
                path = _DOCS / "img" / f"first-look{ending}.png"
                page.take_picture(path)
                _keep(path, (_SIZE[0] // 4, _HEAD, *_SIZE))


def _draw_in_tab(picture: str, run: str, graph: tbscope.Graph, node: str) -> None:
    """Draw a picture of the tab in TensorBoard, with a node of a graph selected."""
    path = _DOCS / "img" / f"{picture}.png"
    with tempfile.TemporaryDirectory() as folder:
        with tbscope.SummaryWriter(f"{folder}/{run}") as writer:
            writer.add_graph(graph)
        with TensorBoard(Path(folder)) as server, Browser() as browser:
            opened = browser.new_page(size=(1180, 760))
            address = f"&p.tbscope.run={run}&p.tbscope.node={quote(node, safe='')}"
            opened.goto(f"{server.url}/#tbscope{address}")
            card = opened.frame_locator("iframe").locator("#card h2")
            card.filter(has_text=node.rpartition("/")[2]).wait_for()
            opened.wait_for_timeout(1000)
            opened.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def draw_ranks() -> None:
    """Draw the pictures of docs/distributed.md: graphs of two ranks, coloured by devices."""
    sys.path.insert(0, str(Path(__file__).parent))
    from tests import parallel_models
    from tests.processes import on_ranks

    shown = {
        "replicated": ("data-parallel", "DistributedDataParallel", False),
        "sharded": ("fully-sharded", "FSDPNet/blocks/0", False),
        "by tensor": ("tensor-parallel", "Net/blocks/0", False),
        "of experts": ("experts", "Sequential/0", False),
        "in a ring": ("context-parallel", "Sequential/0", False),
        "1F1B": ("pipeline", "", False),
        "interleaved": ("interleaved", "", False),
        "by sequence": ("unfolded", "", True),
    }
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "ranks").mkdir()
        models = parallel_models.ON_TWO | parallel_models.VIRTUAL
        models = {name: models[name] for name in shown}
        ranks = on_ranks(parallel_models.all_told, 2, here / "ranks", models)
        for name, (run, _, unfolded) in shown.items():
            graphs = [graph_from_json(rank[name]["graph"]) for rank in ranks]
            with tbscope.SummaryWriter(here / "log" / run) as writer:
                writer.add_graph(tbscope.merge_ranks(graphs, unfolded=unfolded))
        (here / "runs").symlink_to(here / "log")
        with contextlib.chdir(here):
            runpy.run_path(
                str(_DOCS.parent / "examples/distributed/simulated/llama.py"), {}, "__main__"
            )
        shown["of a step"] = ("llama", "FSDPLlama/layers/0/_checkpoint_wrapped_module", False)
        with TensorBoard(here / "log") as server, Browser() as browser:
            small = browser.open(server.url, size=_SIZE, minimap=True)
            large = browser.open(server.url, size=_LARGE, minimap=True)
            for run, box, _ in shown.values():
                page = large if box else small
                page.show(run)
                page.color_by("device")
                opened = list(_path_to(page, box)) if box else []
                path = _DOCS / "img" / "ranks" / f"{run}.png"
                path.parent.mkdir(exist_ok=True)
                page.take_picture(path)
                left = (_SIZE[0] // 4, _HEAD + 60, _SIZE[0] * 2 // 3, _SIZE[1])
                _keep(path, _place(page, opened[-1]) if opened else left)
                if page.errors:
                    raise SystemExit(f"{run}: the page reported: {page.errors}")


def draw_profile() -> None:
    """Draw the picture of docs/overlays.md: a ResNet coloured by time, the card of a stage."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    model = ResNetModel(ResNetConfig(**sizes, layer_type="basic"))
    path = _DOCS / "img" / "profile.png"
    with tempfile.TemporaryDirectory() as folder:
        with tbscope.SummaryWriter(folder) as writer:
            writer.add_graph(model, {"pixel_values": torch.rand(4, 3, 224, 224)}, profile=True)
        with TensorBoard(Path(folder)) as server, Browser() as browser:
            page = browser.open(server.url, size=(1180, 900), minimap=True)
            page.show(".", "profile", profile=True)
            page.color_by("compute_time")
            for box in ("encoder", "encoder/stages"):
                page.expand(box)
            page.info_card("encoder/stages/1")
            page.take_picture(path)
            if page.errors:
                raise SystemExit(f"the page reported: {page.errors}")
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def draw_tutorial() -> None:
    """Draw the pictures of docs/tutorial.md, of the logs that its own code writes."""
    code = re.findall(r"^```python\n(.*?)^```$", (_DOCS / "tutorial.md").read_text(), re.M | re.S)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with contextlib.redirect_stdout(io.StringIO()):
            exec("\n".join(code), {"__name__": "tutorial"})
        with TensorBoard(Path("runs")) as server, Browser() as browser:
            page = browser.open(server.url, size=(1100, 800), minimap=True)
            page.show("digits")
            _keep_whole(page, "tutorial-first")
            page.expand("blocks")
            page.expand("blocks/0")
            page.info_card("blocks/0/conv")
            _keep_whole(page, "tutorial-inside")
            page.show("numbers", "flops", profile=True)
            page.color_by("compute_time")
            _keep_whole(page, "tutorial-flops")
            page.show("training")
            _keep_whole(page, "tutorial-training")
            if page.errors:
                raise SystemExit(f"the page reported: {page.errors}")


def _keep_whole(page: GraphPage, name: str) -> None:
    """Keep a picture of the page as it is."""
    path = _DOCS / "img" / f"{name}.png"
    page.take_picture(path)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def draw_tab() -> None:
    """Draw the picture of docs/tab.md: a Llama of many layers in the tab of TensorBoard."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=126,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    ids = torch.zeros(1, 8, dtype=torch.long)
    graph = tbscope.trace(LlamaForCausalLM(config), ids, kwargs={"use_cache": False})
    _draw_in_tab("tab", "llama", graph, "model/layers/57")


def draw_forms() -> None:
    """Draw the pictures of docs/forms.md: saved pages of a BERT, and of a U-Net; a figure."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    bert = BertModel(BertConfig(**sizes, num_hidden_layers=4, vocab_size=1000)).eval()
    unet, given, _ = diffusion()
    large = BertModel(BertConfig(**sizes, num_hidden_layers=12, vocab_size=1000)).eval()
    figure = tbscope.trace(large, torch.ones(1, 16, dtype=torch.long))
    figure.save(_DOCS / "img" / "figure.svg")
    attention = "encoder/layer/1/attention/self/scaled_dot_product_attention"
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        for name, graph, at in (
            ("saved-page", tbscope.trace(bert, torch.ones(1, 16, dtype=torch.long)), attention),
            ("saved-page-dark", tbscope.trace(unet.eval(), given), "middle"),
        ):
            page = Path(folder) / f"{name}.html"
            graph.save(page)
            opened = browser.new_page(size=(1180, 760), dark=name.endswith("dark"))
            opened.goto(f"{page.as_uri()}#{quote(at, safe='')}")
            path = _DOCS / "img" / f"{name}.png"
            if at == "middle":
                opened.keyboard.press("f")
            opened.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    main()
