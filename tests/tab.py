"""The tab "Model" of a real TensorBoard in a real browser.

`conftest.py` has the fixtures: `show` opens the tab on the log of a module's fixture `logdir`,
alone in a page or, with `whole`, in the page of TensorBoard, which loads three times as long.
"""

import urllib.error
import urllib.request
from urllib.parse import quote

from playwright.sync_api import expect

THINGS = "#world > g .thing:not(circle)"
# TensorBoard's own page warns of it.
_KNOWN = "Three.js"
# As TensorBoard's page has it, below its header.
_FRAME = """<!doctype html><link rel="icon" href="data:,"><body style="margin: 0">
<iframe src="/data/plugin_entry.html?name=tbscope"
    style="position: absolute; top: 64px; width: 100%; height: calc(100% - 64px); border: 0">
</iframe>"""


def stand_alone(page, url):
    """Have nothing but the tab in the page, whose frame asks the server.

    A page whose requests are looked at has no cache, and takes longer for each.
    """
    page.route(f"{url}/", lambda route: route.fulfill(body=_FRAME), times=1)


class Tab:
    """The tab, alone in a page or in TensorBoard's.

    Attributes:
        page: The page of playwright's.
        frame: The frame of the tab.
        errors: Messages that the page threw or reported.
    """

    def __init__(self, browser, url, address="", size=(1400, 900), whole=False):
        self._browser, self._whole = browser, whole
        self.page = browser.new_page(size=size)
        self.errors = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        if not whole:
            stand_alone(self.page, url)
        self.page.goto(f"{url}/#tbscope{address}")
        self.frame = self.page.frame_locator("iframe")
        self.frame.locator(THINGS).first.wait_for()

    @property
    def labels(self):
        """The labels of all that is drawn."""
        return self.frame.locator(f"{THINGS} > .label").all_text_contents()

    def choose(self, what, value):
        """Choose an entry of one of the lists above the graph."""
        self.frame.get_by_label(what, exact=True).select_option(value)

    def entries(self, what):
        """The entries of such a list."""
        return self.frame.get_by_label(what, exact=True).locator("option").all_inner_texts()

    def press(self, *keys):
        """Press keys in the tab."""
        for key in keys:
            self.frame.locator("#canvas").press(key)

    def wait_for(self, *labels):
        """Wait until just these labels are drawn."""
        expect(self.frame.locator(f"{THINGS} > .label")).to_have_text([*labels])

    @property
    def card(self):
        """The heading of the card."""
        return self.frame.locator("#card h2").inner_text()

    def close(self):
        """Close the page, in which nothing may have gone wrong."""
        assert [error for error in self.errors if _KNOWN not in error] == []
        self.put_away()

    def put_away(self):
        """Give the page back; that of TensorBoard has a storage, and is closed."""
        if self._whole:
            self.page.close()
        else:
            self._browser.take_back(self.page)


def at(**place):
    """Return the address of a place in the tab."""
    return "".join(f"&p.tbscope.{key}={quote(str(value))}" for key, value in place.items())


def answer(server, path, **query):
    """Return the status, the type and the content of an answer."""
    words = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items())
    url = f"{server.url}/data/plugin/tbscope/{path}?{words}"
    try:
        with urllib.request.urlopen(url) as told:
            return told.status, told.headers, told.read()
    except urllib.error.HTTPError as refused:
        with refused as told:
            return told.code, told.headers, told.read()
