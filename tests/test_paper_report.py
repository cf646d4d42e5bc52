"""The report: text, page and Markdown say the same and need no network; the slider in a browser."""

import base64
import copy
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from entmeans.paper.frames import all_frames
from entmeans.paper.report import CLASSES, MARKS, plain, render_html, render_markdown, typeset

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 2 1"><path id="p" d="M0 0h1"/></svg>'
NASTY = "a | b <i>c</i> & </script> *d* _e_ `f` $g$ [h](i) \\ F_0 at T <= T*, T*/2"
VERDICTS = ("holds", "holds under a condition", "does not hold")


def claim(number, verdict, **changes):
    return {
        "id": f"C{number}",
        "title": f"Title {number}",
        "statement": f"Statement {number}: {NASTY}",
        "method": f"Method {number}. {NASTY}",
        "rule": f"Rule {number}. {NASTY}",
        "seconds": 1.234,
        "verdict": verdict,
        "measured": f"Measured {number}: {NASTY}",
        "findings": [f"Finding {number}: {NASTY}", "Another."],
        "tables": [
            {
                "title": f"Table {number} {NASTY}",
                "columns": ["T <= 1", "a | b"],
                "rows": [["1e-09", NASTY], ["<b>", "2"]],
            }
        ],
        "figures": [f"c{number}-first", f"c{number}-other-one"],
    } | changes


RESULTS = {
    "entmeans": "0.1.0",
    "date": "2026-01-02",
    "command": "entmeans paper --only C1,C2,C3",
    "settings": {"quick": False, "seeds": [0, 1, 2], "only": []},
    "machine": {"processor": "A | B <CPU>", "cores": 2, "implementation": "numba"},
    "versions": {"python": "3.11.1", "torch": "2.9.0"},
    "seconds": 12.3,
    "claims": [claim(i + 1, verdict) for i, verdict in enumerate(VERDICTS)],
    "experiments": {},
}
NAMES = [name for one in RESULTS["claims"] for name in one["figures"]]
FIGURES = {name: SVG.replace('"p"', f'"{name}"') for name in NAMES}
PATHS = {name: f"figures/{name}.svg" for name in NAMES}


class Page(HTMLParser):
    """Tags, attributes and texts of a page; what is not well nested is an error."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input", "br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):  # <img />, as Markdown is rendered
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def frames():
    return all_frames(quick=True)


@pytest.fixture(scope="module")
def html(frames):
    return render_html(RESULTS, FIGURES, frames)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def markdown(results=RESULTS):
    return render_markdown(results, PATHS)


def rendered(text):
    """The page that a reader of Markdown makes of a text."""
    return Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def test_the_page_names_nothing_outside_itself(html, page):
    for _, attributes in page.tags:
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    without_data = re.sub(r"data:[\w/+-]+;base64,[A-Za-z0-9+/=]*", "", html)
    assert not re.search(r"@import|url\(|https?:|fetch\(|XMLHttpRequest|import\(", without_data)
    assert not re.search(r"""["'(=]\s*//""", without_data)


def test_identifiers_are_unique_and_links_arrive(page):
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))
    links = [attributes["href"] for attributes in page.all("a")]
    assert {"#C1", "#C2", "#C3", "#c1-first"} <= set(links)
    assert {link.removeprefix("#") for link in links} <= set(names)


def test_figures_are_images_of_their_own(page):
    images = page.all("img")
    assert [base64.b64decode(i["src"].partition(",")[2]).decode() for i in images] == [
        *FIGURES.values()
    ]
    assert all(i["src"].startswith("data:image/svg+xml;base64,") for i in images)
    assert [i["alt"] for i in images[:2]] == ["Title 1: first", "Title 1: other one"]


def test_the_page_says_all_that_was_found(page):
    written = typeset(NASTY).striptags()
    for one in RESULTS["claims"]:
        i = one["id"][1:]
        for name in ("Statement", "Measured", "Finding", "Table"):
            assert re.search(rf"{name} {i}:? {re.escape(written)}", page.text)
    assert "Method 2. " + written in page.text
    assert "10−9" in page.text  # 1e-09
    assert "A | B <CPU>" in page.text
    assert "entmeans paper --only C1,C2,C3" in page.text


def test_verdicts_come_first_in_words_and_marks(html):
    table = html[html.index("<table") : html.index("</table>")]
    for one in RESULTS["claims"]:
        verdict = one["verdict"]
        label = f'<span class="badge {CLASSES[verdict]}">{MARKS[verdict]} {verdict}</span>'
        assert label in table
        assert html.count(label) == 2  # and at the section
    assert html.index("</table>") < html.index('id="freeze"') < html.index('<section id="C1"')
    assert len(set(MARKS.values())) == len(set(CLASSES.values())) == 3


def test_data_cannot_end_its_script(frames):
    bad = copy.deepcopy(frames)
    bad["geometries"]["blobs"]["softmax"]["points"] = "</script><b>"
    text = render_html(RESULTS, FIGURES, bad)
    assert "</script><b>" not in text
    data = re.search(r'<script type="application/json" id="frames">(.*?)</script>', text, re.S)
    assert json.loads(data[1]) == bad


def test_a_quick_run_says_so():
    quick = RESULTS | {"settings": {"quick": True, "seeds": [0], "only": []}}
    few = {"colors": [], "geometries": {"blobs": {"softmax": {}}}}
    for text in (render_html(quick, FIGURES, few), markdown(quick)):
        assert "This was a quick run" in text
        assert "1 seed." in text
    for text in (render_html(RESULTS, FIGURES, few), markdown()):
        assert "quick run" not in text
        assert "3 seeds." in text


def test_one_claim_without_findings_figures_and_tables_is_enough(frames):
    bare = RESULTS | {
        "claims": [claim(4, "does not hold", findings=[], tables=[], figures=[])],
        "command": "",
    }
    found = Page(render_html(bare, {}, frames))
    assert not found.all("img")
    assert "1 ○ does not hold" in found.text
    assert "holds under" not in found.text
    assert "Numbers" not in found.texts
    assert "## C4 Title 4: ○ does not hold" in markdown(bare)


def test_an_unknown_verdict_is_an_error(frames):
    unknown = RESULTS | {"claims": [claim(1, "maybe")]}
    with pytest.raises(KeyError, match="maybe"):
        render_html(unknown, FIGURES, frames)
    with pytest.raises(KeyError, match="maybe"):
        markdown(unknown)


def test_markdown_shows_text_as_it_is():
    found = rendered(markdown())
    for one in RESULTS["claims"]:
        i = one["id"][1:]
        for text in (one["statement"], one["method"], one["measured"], one["findings"][0]):
            assert text in found.text
        assert f"Table {i} {NASTY}" in found.text
    assert not found.all("i")
    assert not found.all("b")
    assert not found.all("a")


def test_markdown_has_verdicts_first_figures_and_whole_tables():
    text = markdown()
    found = rendered(text)
    assert [i["src"] for i in found.all("img")] == [*PATHS.values()]
    kinds = [tag for tag, _ in found.tags]
    assert kinds.index("table") < kinds.index("h2")
    # verdicts, a table for each claim, and how it was made
    assert kinds.count("table") == 5
    assert kinds.count("td") == 3 * 3 + 3 * 4 + 2 * 5
    first = text[text.index("| claim") : text.index("## C1")]
    for one in RESULTS["claims"]:
        assert re.search(rf"^\| {one['id']} .* {one['verdict']} \|$", first, flags=re.M)
    assert "\n\n\n" not in text
    assert text.endswith("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("T <= 2 >= 1", "T ≤ 2 ≥ 1"),
        ("T < 1", "T &lt; 1"),
        (
            "2.08e-15, 1e-16 and 3e+06",
            "2.08 × 10<sup>−15</sup>, 10<sup>−16</sup> and 3 × 10<sup>6</sup>",
        ),
        ("T H_max and F_T - F_0", "T H<sub>max</sub> and F<sub>T</sub> - F<sub>0</sub>"),
        ("rows of some_name, 3e and 1e5f", "rows of some_name, 3e and 1e5f"),
        ('"<b>" & c', "&#34;&lt;b&gt;&#34; &amp; c"),
    ],
)
def test_typesetting(text, expected):
    assert typeset(text) == expected


@pytest.mark.parametrize(
    "text",
    ["T <= T*, T*/2 and T*/1000", "F_0 - F_T stays within T H_max", "100% (1 to 2); R² +2.5"],
)
def test_what_markdown_shows_anyway_is_not_escaped(text):
    assert plain(text) == text


# In a browser: one process, so that few of them run at once.
browser = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def chromium():
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs chromium and chromedriver (apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory, html):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path.as_uri()


class Slider:
    """The slider of a page that was just opened, as a reader uses it."""

    def __init__(self, driver, frames):
        self.driver, self.frames = driver, frames

    def __getattr__(self, name):
        return self.driver.find_element("id", name.replace("_", "-"))

    def say(self, name):
        return self.driver.find_element("id", f"readout-{name}").text

    def number(self, name):
        return float(self.say(name).split()[0])

    def choose(self, name, value):
        box = self.driver.find_element("css selector", f'input[name="{name}"][value="{value}"]')
        box.find_element("xpath", "..").click()

    def press(self, *keys):
        self.temperature.send_keys(*keys)

    def set(self, geometry="blobs", mapping="entmax15"):
        return self.frames["geometries"][geometry][mapping]

    def colors_at(self, centers):
        """What the canvas shows at places in the unit square."""
        return self.driver.execute_script(
            """const plane = document.getElementById("plane");
            const copy = new OffscreenCanvas(plane.width, plane.height);
            const context = copy.getContext("2d", {willReadFrequently: true});
            context.drawImage(plane, 0, 0);
            return arguments[0].map(([x, y]) => [...context.getImageData(
                Math.floor(x * plane.width), Math.floor(y * plane.height), 1, 1).data]
                .slice(0, 3).map((v) => v.toString(16).padStart(2, "0")).join(""))""",
            centers,
        )

    def wait_for_centers(self, centers):
        """Until the centers have come to these places."""
        from selenium.webdriver.support.ui import WebDriverWait

        expected = [color.removeprefix("#") for color in self.frames["colors"]]
        WebDriverWait(self.driver, 5).until(lambda _: self.colors_at(centers) == expected)


@pytest.fixture
def slider(chromium, address, frames):
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    chromium.get(address)
    yield Slider(chromium, frames)
    assert chromium.get_log("browser") == []


@browser
def test_keys_cool_the_clusters_into_k_means(slider):
    from selenium.webdriver.common.keys import Keys

    found = slider.set()
    n = len(found["frames"])
    assert (slider.say("hard"), slider.say("temperature")) == (
        "0 %",
        f"{found['frames'][0]['temperature']:.3g}",
    )
    temperatures, states = [], []
    for i in range(n):
        temperatures.append(slider.number("temperature"))
        states.append(slider.state.text)
        assert slider.say("hard") == f"{int(100 * found['frames'][i]['hard'] + 1e-9)} %"
        assert ("= T*" in slider.say("temperature")) == (i == found["hardening_frame"])
        slider.press(Keys.ARROW_RIGHT)
    assert temperatures == sorted(set(temperatures), reverse=True)
    assert temperatures[-1] == 0
    exactly = ["exactly K-means" in state for state in states]
    assert exactly == [i >= found["hardening_frame"] for i in range(n)]
    assert slider.say("hard") == "100 %"
    assert slider.number("free-energy") == slider.number("inertia") > 0
    assert slider.number("doubt") == 0
    slider.press(Keys.HOME)
    assert slider.number("temperature") == temperatures[0]
    assert slider.number("free-energy") < slider.number("inertia")


@browser
def test_softmax_never_is_exactly_hard(slider):
    from selenium.webdriver.common.keys import Keys

    slider.choose("mapping", "softmax")
    assert not slider.star.is_displayed()
    n = len(slider.set(mapping="softmax")["frames"])
    for _ in range(n - 1):
        assert slider.say("hard") == "0 %"
        assert slider.number("doubt") > 0
        assert "exactly" not in slider.state.text
        slider.press(Keys.ARROW_RIGHT)
    assert slider.number("temperature") == 0
    assert "exactly" not in slider.state.text
    assert "limit" in slider.state.text
    assert slider.number("free-energy") == slider.number("inertia")


@browser
@pytest.mark.parametrize("geometry", ["two moons", "spiral"])
def test_centers_move_and_are_drawn_where_they_rest(geometry, slider):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    slider.choose("geometry", geometry)
    found = slider.set(geometry)["frames"]
    slider.press(Keys.END)
    slider.wait_for_centers(found[-1]["centers"])
    slider.press(Keys.ARROW_LEFT)
    slider.choose("mapping", "softmax")
    slider.press(Keys.END)
    slider.wait_for_centers(slider.set(geometry, "softmax")["frames"][-1]["centers"])
    before = slider.colors_at(found[-1]["centers"])
    slider.press(Keys.HOME)
    WebDriverWait(slider.driver, 5).until(
        lambda _: slider.colors_at(found[-1]["centers"]) != before
    )


@browser
def test_dragging_cools(slider):
    slider.driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center'})", slider.temperature
    )
    where = "return arguments[0].getBoundingClientRect()"
    box = slider.driver.execute_script(where, slider.temperature)

    def mouse(kind, share):
        place = {
            "x": box["x"] + 12 + (box["width"] - 24) * share,
            "y": box["y"] + box["height"] / 2,
        }
        event = {"type": kind, "button": "left", "buttons": 1, "clickCount": 1, **place}
        slider.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    start = slider.number("temperature")
    mouse("mousePressed", 0.0)
    mouse("mouseMoved", 0.3)
    middle = slider.number("temperature")
    assert 0 < middle < start
    mouse("mouseMoved", 1.0)
    mouse("mouseReleased", 1.0)
    assert slider.number("temperature") == 0
    assert slider.say("hard") == "100 %"
    slider.wait_for_centers(slider.set()["frames"][-1]["centers"])


@browser
def test_the_mark_of_the_hardening_temperature_lies_under_its_frame(slider):
    found = slider.set()
    slider.driver.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
        slider.temperature,
        found["hardening_frame"],
    )
    assert slider.say("temperature").endswith("= T*")
    track, star = slider.temperature.rect, slider.star.rect
    share = found["hardening_frame"] / (len(found["frames"]) - 1)
    thumb = track["x"] + 12 + (track["width"] - 24) * share
    assert star["x"] + star["width"] / 2 == pytest.approx(thumb, abs=1)


@browser
def test_another_choice_keeps_the_temperature(slider):
    from selenium.webdriver.common.keys import Keys

    slider.press(*[Keys.ARROW_RIGHT] * 3)
    before = slider.number("temperature")
    slider.choose("mapping", "softmax")
    slider.choose("geometry", "circles")
    assert 0.5 < slider.number("temperature") / before < 2
    slider.press(Keys.END)
    slider.choose("geometry", "spiral")
    slider.choose("mapping", "entmax15")
    assert slider.number("temperature") == 0


@browser
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_play_runs_to_the_end_and_can_be_stopped(motion, slider):
    from selenium.webdriver.support.ui import WebDriverWait

    slider.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-reduced-motion", "value": motion}]},
    )
    start = slider.number("temperature")
    slider.play.click()
    assert slider.play.text == "Pause"
    wait = WebDriverWait(slider.driver, 20)
    wait.until(lambda _: slider.number("temperature") < start)
    slider.play.click()
    assert slider.play.text == "Play"
    slider.play.click()
    wait.until(lambda _: slider.number("temperature") == 0)
    wait.until(lambda _: slider.play.text == "Play")
    slider.wait_for_centers(slider.set()["frames"][-1]["centers"])
    assert slider.readouts.get_attribute("aria-live") == "polite"


@browser
def test_calm_readers_see_no_motion(slider):
    from selenium.webdriver.common.keys import Keys

    slider.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]},
    )
    slider.press(Keys.ARROW_RIGHT, Keys.END)
    # at once, in the same turn: nothing moves toward its place
    last = slider.set()["frames"][-1]["centers"]
    assert slider.colors_at(last) == [color[1:] for color in slider.frames["colors"]]


@browser
def test_every_control_is_reached_by_the_keyboard(slider):
    from selenium.webdriver.common.keys import Keys

    assert slider.temperature.accessible_name == "Temperature, from hot to T = 0"
    assert slider.play.accessible_name == "Play"
    box = slider.driver.find_element("css selector", 'input[name="geometry"][value="blobs"]')
    box.send_keys(Keys.ARROW_RIGHT)
    chosen = slider.driver.find_element("css selector", 'input[name="geometry"]:checked')
    assert chosen.get_attribute("value") == "two moons"
    first = slider.set("two moons")["frames"][0]
    assert slider.number("temperature") == pytest.approx(first["temperature"], rel=0.01)
    slider.play.send_keys(Keys.ENTER)
    assert slider.play.text == "Pause"


@browser
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_the_page_fits_every_width_and_loads_nothing(width, slider):
    slider.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 2, "mobile": width < 500},
    )
    slider.driver.refresh()
    size = "return [document.documentElement.scrollWidth, innerWidth]"
    needed, there = slider.driver.execute_script(size)
    assert needed <= there == width
    loaded = slider.driver.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert all(name.startswith("data:") for name in loaded)
    images = "return [...document.images].every((image) => image.naturalWidth > 0)"
    assert slider.driver.execute_script(images)


@browser
def test_numbers_are_printed_too(slider):
    folds = "return [...document.querySelectorAll('details')].map((one) => one.open)"
    assert slider.driver.execute_script(folds) == [False] * 3
    slider.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert slider.driver.execute_script(folds) == [True] * 3
